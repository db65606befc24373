"""`!command` that fails: the lines after it run, and the cell has not ended well."""

from __future__ import annotations

import pytest

from tests.behaviour.faces import AnySandbox


@pytest.mark.every_face
def test_a_failed_command_is_the_exit_code_of_the_cell_and_its_variables_are_kept(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("!exit 3\nx = _exit_code\nprint('goes on')\nx + 1")
    assert (result.ok, result.exit_code, result.state) == (False, 3, "kept")
    assert (result.stdout, result.stderr, result.value) == ("goes on\n", "", "4")
    assert result.error is not None
    assert (result.error.name, result.error.message) == ("CommandFailed", "!exit 3 ended with exit code 3")
    assert any_sandbox.run_code("x").value == "3"


def test_of_several_commands_the_last_that_failed_counts(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("!exit 3\nfor code in (4, 0):\n    !exit {code}\n!true")
    assert result.exit_code == 4
    assert any_sandbox.run_code("!true").ok
    assert any_sandbox.run_code("!exit 3\n" + "# long " + "x" * 500).exit_code == 3


def test_a_cell_that_ends_otherwise_ends_so(any_sandbox: AnySandbox) -> None:
    raised = any_sandbox.run_code("!exit 3\n1 / 0")
    assert raised.exit_code == 1
    assert raised.error is not None
    assert raised.error.name == "ZeroDivisionError"
    assert any_sandbox.run_code("!exit 3\nimport sys; sys.exit(0)").ok
    assert any_sandbox.run_code("!exit 3\nimport sys; sys.exit(5)").exit_code == 5


@pytest.mark.parametrize(
    "code", ["out = !echo text; exit 3", "!false || true", "import os; status = os.system('exit 3')"]
)
def test_what_the_code_asks_for_itself_is_its_own_business(any_sandbox: AnySandbox, code: str) -> None:
    """A captured command, one that the shell was told to forgive, and `os.system`, which returns the status."""
    result = any_sandbox.run_code(code)
    assert (result.ok, result.error) == (True, None), result.stderr


def test_a_command_in_a_loop_body_and_one_of_a_magic_count_too(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code("def go():\n    get_ipython().system('exit 6')\ngo()").exit_code == 6
    assert any_sandbox.run_code("%%capture\n!exit 7").exit_code == 7


def test_an_interrupt_of_a_command_is_an_interrupt(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("!exit 3\n!sleep 60", timeout=0.3)
    assert (result.exit_code, result.interrupted, result.cause) == (130, True, "timeout")
