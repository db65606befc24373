"""What bash cells need of the inside; what a user sees of them is in tests/behaviour/test_bash.py."""

from __future__ import annotations

from tests.guest.guest_driver import Guest


def test_a_broken_pipe_ends_programs_quietly(guest: Guest) -> None:
    outcome = guest.run("set -o pipefail; yes | head -1", "bash")
    assert (outcome.exit_code, outcome.stderr) == (141, "")


def test_a_bash_syntax_error_is_the_cells(guest: Guest) -> None:
    outcome = guest.run("echo 'unclosed", "bash")
    assert outcome.exit_code == 2
    assert "bash: " in outcome.stderr


def test_bash_leaves_no_descriptors_behind(guest: Guest) -> None:
    before = guest.run("import os\nlen(os.listdir('/proc/self/fd'))").value
    guest.run("echo", "bash")
    guest.run("echo\n" * 50_000 + "exit 3", "bash")
    assert guest.run("len(os.listdir('/proc/self/fd'))").value == before
