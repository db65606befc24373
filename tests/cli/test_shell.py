"""`ramet shell`, used at a terminal: lines, completion, Ctrl-C, Ctrl-D, history."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from ramet import Sandbox
from tests.cli.commands import COMMAND, environment, ramet
from tests.server.running import Server

_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])|[\x07\x0f]")
# Sent once before a cell is asked for, and once when it is there (bracketed paste on and off); a prompt is drawn often.
_ASKS, _TAKEN = "\x1b[?2004h", "\x1b[?2004l"
_WAIT_SECONDS = 30


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, state: Path, url: str | None, no_colour: str, *arguments: str) -> None:
        # No question about the cursor's place, which nobody would answer here.
        more = {"RAMET_STATE": str(state), "TERM": "xterm", "NO_COLOR": no_colour, "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], "shell", *arguments],
            env=environment(url, **more),  # type: ignore[arg-type, unused-ignore]
            encoding="utf-8",
            timeout=_WAIT_SECONDS,
            dimensions=(40, 120),
        )

    def until(self, text: str) -> str:
        """What was shown up to it."""
        self.child.expect_exact(text)
        return _ESCAPE.sub("", self.child.before or "")

    def prompt(self) -> str:
        """What was shown until it asks for the next cell."""
        shown = self.until(_ASKS)
        self.until(">>>")
        return shown

    def type(self, text: str) -> None:
        self.child.send(text)

    def enter(self, line: str = "") -> None:
        """Until what was typed is taken."""
        self.type(line + "\r")
        self.until(_TAKEN)

    def cell(self, line: str) -> str:
        """What a line shows."""
        self.enter(line)
        return self.prompt()

    def leave(self) -> int:
        self.child.sendeof()
        self.child.expect(pexpect.EOF)
        self.child.close()
        return int(self.child.exitstatus or 0)


Shell = Callable[..., Terminal]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened: list[Terminal] = []

    def start(*arguments: str, url: str | None = None, no_colour: str = "1") -> Terminal:
        opened.append(Terminal(tmp_path / "state", url, no_colour, *arguments))
        opened[-1].prompt()
        return opened[-1]

    yield start
    for one in opened:
        one.child.close(force=True)


def test_values_output_and_errors_are_shown_and_names_stay(shell: Shell) -> None:
    one = shell()
    one.cell("x = 41")
    assert "42\r\n" in one.cell("x + 1")
    assert "printed\r\n" in one.cell("print('printed', end='')")
    assert "ZeroDivisionError" in one.cell("1 / 0")
    assert "of bash" in one.cell("!echo of $(echo bash)")
    assert one.leave() == 0


@pytest.mark.deep("load")
def test_a_block_goes_on_until_an_empty_line(shell: Shell) -> None:
    one = shell()
    one.type("for i in range(3):\r")
    one.until("...")
    one.type("print(i * 7)\r")  # indented already
    one.until("...")
    assert one.cell("").split() == ["0", "7", "14"]


def test_ctrl_c_interrupts_the_cell_and_keeps_the_state(shell: Shell) -> None:
    one = shell()
    one.cell("x = 41")
    one.enter("while x: print('running', flush=True); __import__('time').sleep(0.1)")
    one.until("running\r\n")
    one.child.sendintr()
    assert "KeyboardInterrupt" in one.prompt()
    assert "42\r\n" in one.cell("x + 1")


@pytest.mark.deep("load")
def test_ctrl_c_at_the_prompt_only_drops_the_line(shell: Shell) -> None:
    one = shell()
    one.type("nonsense(")
    one.until("(")
    one.child.sendintr()
    one.prompt()
    assert "42\r\n" in one.cell("6 * 7")


@pytest.mark.deep("load")
def test_tab_completes_names_of_the_sandbox(shell: Shell) -> None:
    one = shell()
    one.cell("something_long = 'found'")
    one.type("something_l\t")
    one.until("ong")
    one.type(".upp\t")
    one.until("er")
    assert "'FOUND'" in one.cell("()")


@pytest.mark.deep("load")
def test_history_is_there_in_the_next_shell(shell: Shell) -> None:
    first = shell()
    first.cell("'remembered ' + 'line'")
    first.leave()
    second = shell()
    assert "'remembered line'" in second.cell("\x1b[A")


@pytest.mark.deep("load")
@pytest.mark.parametrize("no_colour", ["", "1"])
def test_tracebacks_are_coloured_on_a_terminal_unless_somebody_minds(shell: Shell, no_colour: str) -> None:
    one = shell(no_colour=no_colour)
    one.enter("1 / 0")
    one.child.expect_exact("ZeroDivisionError")
    assert ("\x1b[" in one.child.before) == (not no_colour)


@pytest.mark.deep("load")
def test_leaving_by_word_ends_the_sandbox_of_the_shell(shell: Shell, server: Server) -> None:
    before = set(ramet("ps", "-q", url=server.url).stdout.split())
    one = shell(url=server.url)
    (made,) = set(ramet("ps", "-q", url=server.url).stdout.split()) - before
    one.enter("exit")
    one.child.expect(pexpect.EOF)
    assert made not in ramet("ps", "-q", url=server.url).stdout.split()


def test_a_shell_in_a_sandbox_of_a_server_leaves_it_there(shell: Shell, server: Server, kept: Sandbox) -> None:
    one = shell(kept.id, url=server.url)
    one.cell("x += 1")
    assert one.leave() == 0
    assert kept.run_code("x").value == "42"


def test_a_sandbox_that_ends_meanwhile_ends_the_shell_with_its_cause(
    shell: Shell, server: Server, kept: Sandbox
) -> None:
    one = shell(kept.id, url=server.url)
    kept.close()
    one.enter("x")
    one.child.expect("ramet: ([^\r\n]*)")
    assert kept.id in one.child.match[1]
    one.child.expect(pexpect.EOF)
    one.child.close()
    assert one.child.exitstatus == 1


def test_code_from_a_pipe_is_run_and_its_code_is_ours() -> None:
    done = ramet("shell", given="print(6 * 7)\nimport sys\nsys.exit(3)\n")
    assert (done.returncode, done.stdout) == (3, "42\n")
