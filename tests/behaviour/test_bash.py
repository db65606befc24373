"""language="bash": each cell a fresh script in the REPL's folder and environment."""

from __future__ import annotations

from tests.behaviour.faces import AnySandbox
from tests.behaviour.waiting import wait_until


def bash(sandbox: AnySandbox, script: str) -> str:
    result = sandbox.run_code(script, language="bash", timeout=60)
    assert result.ok, result
    return result.stdout


def test_bash_starts_in_the_folder_and_environment_of_the_repl(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import os\nos.mkdir('/root/deep')\nos.chdir('/root/deep')\nos.environ['WORD'] = 'a b'")
    assert bash(any_sandbox, 'echo "$PWD $WORD"') == "/root/deep a b\n"


def test_variables_and_folder_of_a_bash_cell_are_gone_afterwards(any_sandbox: AnySandbox) -> None:
    bash(any_sandbox, "x=1; export y=2; cd /tmp; f() { :; }")
    assert bash(any_sandbox, 'echo "[$x][$y]$PWD"; type f 2>/dev/null || true') == "[][]/root\n"
    assert any_sandbox.run_code("import os; (os.environ.get('y'), os.getcwd())").value == "(None, '/root')"


def test_the_exit_code_of_bash_is_that_of_the_cell(any_sandbox: AnySandbox) -> None:
    for script, code in (("exit 7", 7), ("false", 1), ("true", 0), ("nonsense-command", 127)):
        result = any_sandbox.run_code(script, language="bash")
        assert (result.exit_code, result.ok, result.state) == (code, code == 0, "kept"), script


def test_a_signal_that_ends_bash_is_128_and_its_number(any_sandbox: AnySandbox) -> None:
    for name, code in (("TERM", 143), ("KILL", 137)):
        result = any_sandbox.run_code(f"kill -{name} $$", language="bash")
        assert (result.exit_code, result.state) == (code, "kept"), name


def test_set_e_ends_the_script_at_the_first_failure(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("set -e\necho one\nfalse\necho two", language="bash")
    assert (result.stdout, result.exit_code) == ("one\n", 1)


def test_pipes_and_pipefail_behave_as_in_a_script(any_sandbox: AnySandbox) -> None:
    assert bash(any_sandbox, "printf 'b\\na\\n' | sort | head -n 1") == "a\n"
    assert any_sandbox.run_code("set -o pipefail; false | true", language="bash").exit_code == 1
    assert bash(any_sandbox, "yes | head -n 1") == "y\n"


def test_heredocs_behave_as_in_a_script(any_sandbox: AnySandbox) -> None:
    assert bash(any_sandbox, "x=5\ncat <<END\nvalue $x\nEND\ncat <<'END'\nliteral $x\nEND") == "value 5\nliteral $x\n"


def test_background_jobs_can_be_waited_for(any_sandbox: AnySandbox) -> None:
    assert bash(any_sandbox, "(echo job > /root/job) &\nwait\ncat /root/job") == "job\n"


def test_a_background_job_does_not_hold_its_cell_and_goes_on(any_sandbox: AnySandbox) -> None:
    script = "(while [ ! -e /root/go ]; do sleep 0.01; done; echo late; touch /root/ended) &\necho started"
    assert bash(any_sandbox, script) == "started\n"
    any_sandbox.files.write("/root/go", b"")
    wait_until(lambda: any_sandbox.files.exists("/root/ended"), "the background job ended")
    assert any_sandbox.run_code("1").background == "late\n"


def test_stderr_of_bash_is_stderr_and_names_the_line(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("echo out\n\nnonsense-command", language="bash")
    assert result.stdout == "out\n"
    assert "line 3: nonsense-command: command not found" in result.stderr


def test_stdin_of_bash_is_empty(any_sandbox: AnySandbox) -> None:
    assert bash(any_sandbox, "read line || echo empty; cat; wc -c") == "empty\n0\n"


def test_a_script_longer_than_an_argument_may_be_runs(any_sandbox: AnySandbox) -> None:
    assert bash(any_sandbox, f"# {'x' * 300_000}\necho long") == "long\n"


def test_files_made_by_bash_are_seen_by_python(any_sandbox: AnySandbox) -> None:
    bash(any_sandbox, "echo text > from-bash")
    assert any_sandbox.run_code("open('from-bash').read()").value == "'text\\n'"
