"""`ramet run`: output, arguments, exit codes, with a sandbox of its own and at a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import Sandbox
from tests.cli.commands import COMMAND, WAIT_SECONDS, environment, ramet
from tests.server.running import Server

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["embedded", "server"])
def ramet_run(request: pytest.FixtureRequest) -> Run:
    """The same with both."""
    url = request.getfixturevalue("server").url if request.param == "server" else None
    return lambda *arguments, **more: ramet("run", *arguments, url=url, **more)


def test_a_script_gets_its_arguments_and_its_exit_code_is_ours(ramet_run: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nprint('e', file=sys.stderr)\nsys.exit(7)\n")
    done = ramet_run(str(script), "--timeout", "ä", "-c")
    assert (done.returncode, done.stdout, done.stderr) == (7, "['--timeout', 'ä', '-c']\n", "e\n")


def test_code_from_the_command_line_prints_its_value(ramet_run: Run) -> None:
    assert ramet_run("-c", "print('a'); 6 * 7").stdout == "a\n42\n"


def test_code_from_standard_input(ramet_run: Run) -> None:
    done = ramet_run("-", "argument", given="import sys; print(sys.argv); 'not printed'")
    assert (done.returncode, done.stdout) == (0, "['-', 'argument']\n")


def test_bash_has_its_arguments_and_its_code(ramet_run: Run) -> None:
    done = ramet_run("--language", "bash", "-c", "echo $2; exit 3", "a b", "$HOME")
    assert (done.returncode, done.stdout) == (3, "$HOME\n")


def test_an_exception_is_shown_and_is_exit_code_1(ramet_run: Run) -> None:
    done = ramet_run("-c", "1 / 0")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_a_failed_command_of_a_shell_is_the_exit_code(ramet_run: Run) -> None:
    done = ramet_run("-c", "!exit 5\nprint('goes on')")
    assert (done.returncode, done.stdout) == (5, "goes on\n")


@pytest.mark.parametrize(
    ("language", "code", "place"),
    [
        ("python", "print('begun', flush=True)\nwhile True: pass", ", in <string>, line 2"),
        ("bash", "echo begun; sleep 60", ""),
    ],
)
def test_a_timeout_is_exit_code_124_and_one_line(ramet_run: Run, language: str, code: str, place: str) -> None:
    done = ramet_run("--timeout", "0.5", "--language", language, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (124, "begun\n", f"ramet: timed out after 0.5 s{place}\n")


def test_a_repl_that_dies_is_told_and_its_code_is_ours(ramet_run: Run) -> None:
    done = ramet_run("-c", "import os; os._exit(3)")
    assert done.returncode == 3
    assert "Python ended" in done.stderr


def test_json_is_the_whole_result(ramet_run: Run) -> None:
    done = ramet_run("--json", "-c", "print('a'); import sys; print('b', file=sys.stderr); [1, 2]")
    told = json.loads(done.stdout)
    assert (told["exit_code"], told["stdout"], told["stderr"], told["value"]) == (0, "a\n", "b\n", "[1, 2]")
    assert told["results"] == [{"what": "value", "data": {"text/plain": "[1, 2]"}}]


def test_files_are_uploaded_first(ramet_run: Run, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"1,2\n" * 1_000_000)
    upload = f"{tmp_path / 'data.csv'}"
    code = "import os; print(os.path.getsize('data.csv'), os.path.getsize('/tmp/there'))"
    done = ramet_run("--upload", upload, "--upload", f"{upload}:/tmp/there", "-c", code)
    assert done.stdout == "4000000 4000000\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("no-such-script.py",), "cannot read no-such-script.py: No such file or directory"),
        (("a notebook.ipynb",), "cannot run a notebook.ipynb: it is a notebook, not a script"),
        (("--upload", "no-such-file", "-c", "1"), "cannot read no-such-file"),
        (("--timeout", "-1", "-c", "1"), "timeout"),
        (("--template", "no-such", "-c", "1"), "no-such"),
    ],
)
def test_what_is_not_the_scripts_failure_is_exit_code_125(
    ramet_run: Run, arguments: tuple[str, ...], told: str
) -> None:
    done = ramet_run(*arguments)
    assert done.returncode == 125
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_without_a_script_is_misuse(ramet_run: Run) -> None:
    done = ramet_run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing to run" in done.stderr


def test_a_server_that_is_not_there_is_exit_code_125() -> None:
    done = ramet("run", "-c", "1", url="http://127.0.0.1:1")
    assert done.returncode == 125
    assert "http://127.0.0.1:1" in done.stderr


def test_keep_and_sandbox_need_a_server() -> None:
    for option in (["--keep"], ["--sandbox", "sbx_1"]):
        done = ramet("run", *option, "-c", "1")
        assert done.returncode == 125
        assert "hint: name" in done.stderr


def test_a_sandbox_that_exists_keeps_its_state(server: Server, kept: Sandbox) -> None:
    beginning = kept.id.removeprefix("sbx_")[:12]
    assert ramet("run", "--sandbox", beginning, "-c", "x += 1; x", url=server.url).stdout == "42\n"
    assert kept.run_code("x").value == "42"


def test_a_sandbox_is_closed_unless_it_is_kept(server: Server) -> None:
    assert ramet("run", "-c", "1", url=server.url).returncode == 0
    done = ramet("run", "--keep", "-c", "x = 1", url=server.url)
    sandbox_id = done.stderr.split()[-1]
    listed = ramet("ps", "--quiet", url=server.url).stdout.split()
    assert listed == [sandbox_id]
    assert ramet("rm", sandbox_id, url=server.url).returncode == 0


@pytest.mark.parametrize("where", ["embedded", "server"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_the_sandbox(
    request: pytest.FixtureRequest, where: str, number: int, code: int
) -> None:
    url = request.getfixturevalue("server").url if where == "server" else None
    source = "print('begun', flush=True)\nimport time\ntime.sleep(600)"
    with subprocess.Popen(
        [*COMMAND, "run", "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(url)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == code
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    if url is not None:
        assert ramet("ps", "--quiet", url=url).stdout == ""


def test_output_that_nobody_reads_any_more_is_no_complaint() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [*COMMAND, "run", "-c", "print('x' * 100000)"],
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=WAIT_SECONDS,
            check=False,
            env=environment(),
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.deep("load")
def test_a_file_that_is_only_here_is_told_with_the_option_that_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").touch()
    monkeypatch.chdir(tmp_path)
    for code, hint in (
        ("open('data/a.csv')", "hint: ramet run --upload data "),
        ("import os; os.listdir('./data')", "hint: ramet run --upload data "),
        (f"open({str(tmp_path / 'data' / 'a.csv')!r})", f"hint: ramet run --mount {tmp_path}/data:{tmp_path}/data "),
    ):
        done = ramet("run", "-c", code)
        assert (done.returncode, "not in the sandbox" in done.stderr, hint in done.stderr) == (1, True, True), (
            done.stderr
        )
    for code in ("open('not-here.csv')", "raise FileNotFoundError('data')", "open('data/a.csv/x')", "open('data')"):
        assert "not in the sandbox" not in ramet("run", "--upload", "data", "-c", code).stderr
    assert "not in the sandbox" not in ramet("run", "--json", "-c", "open('data/a.csv')").stderr
