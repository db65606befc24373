from __future__ import annotations

from tests.guest.guest_driver import Guest


def test_each_bash_cell_is_fresh_with_the_repls_folder_and_environment(guest: Guest) -> None:
    guest.run("import os\nos.chdir('/')\nos.environ['COLOUR'] = 'blue'")
    assert guest.run("echo $PWD $COLOUR; x=1", "bash").stdout == "/ blue\n"
    assert guest.run("echo [$x]", "bash").stdout == "[]\n"


def test_the_exit_code_of_a_bash_cell_is_the_scripts(guest: Guest) -> None:
    assert guest.run("exit 7", "bash").exit_code == 7
    assert guest.run("set -e; false; echo no", "bash").exit_code == 1
    assert guest.run("kill -9 $$", "bash").exit_code == 137
    assert guest.run("yes | head -1", "bash").stdout == "y\n"
    assert guest.run("cat <<END\nhere\nEND", "bash").stdout == "here\n"


def test_a_broken_pipe_ends_programs_quietly(guest: Guest) -> None:
    outcome = guest.run("set -o pipefail; yes | head -1", "bash")
    assert (outcome.exit_code, outcome.stderr) == (141, "")


def test_a_background_job_does_not_hold_the_cell(guest: Guest) -> None:
    outcome = guest.run("sleep 60 & echo $!", "bash")
    assert outcome.exit_code == 0
    assert guest.run(f"kill {outcome.stdout.strip()}", "bash").exit_code == 0


def test_a_script_longer_than_an_argument_runs(guest: Guest) -> None:
    script = "x=0\n" + "x=$((x+1))\n" * 30_000 + "echo $x\n"
    assert guest.run(script, "bash").stdout == "30000\n"


def test_a_bash_syntax_error_is_the_cells(guest: Guest) -> None:
    outcome = guest.run("echo 'unclosed", "bash")
    assert outcome.exit_code == 2
    assert "bash: " in outcome.stderr


def test_bash_leaves_no_descriptors_behind(guest: Guest) -> None:
    before = guest.run("import os\nlen(os.listdir('/proc/self/fd'))").value
    guest.run("echo", "bash")
    guest.run("echo\n" * 50_000 + "exit 3", "bash")
    assert guest.run("len(os.listdir('/proc/self/fd'))").value == before
