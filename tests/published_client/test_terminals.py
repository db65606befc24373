"""Terminals through the published client."""

from __future__ import annotations

import threading
from typing import Any

from tests.behaviour.waiting import wait_until


class Screen:
    """Collects what a terminal shows."""

    def __init__(self) -> None:
        self._data = b""
        self._lock = threading.Lock()

    def __call__(self, data: bytes) -> None:
        with self._lock:
            self._data += data

    def wait_for(self, text: bytes) -> None:
        wait_until(lambda: text in self._data, f"the terminal shows {text!r}")


def test_a_shell_that_is_typed_into(published: Any) -> None:
    screen = Screen()
    terminal = published.pty.create(cmd="bash --norc", cols=100, rows=30, on_data=screen, env={"COLOUR": "green"})
    terminal.send_input("echo $((6 * 7))-$COLOUR; stty size\n")
    screen.wait_for(b"42-green")
    screen.wait_for(b"30 100")
    terminal.resize(120, 40)
    terminal.send_input(b"stty size; tty\n")
    screen.wait_for(b"40 120")
    screen.wait_for(b"/dev/pts/")
    terminal.send_input("exit 5\n")
    assert terminal.wait(timeout=30) == 5


def test_a_command_in_a_folder(published: Any) -> None:
    screen = Screen()
    ended: list[int] = []
    terminal = published.pty.create(cmd=["pwd"], cwd="/tmp", on_data=screen, on_exit=ended.append)
    assert terminal.wait(timeout=30) == 0
    screen.wait_for(b"/tmp")
    wait_until(lambda: ended == [0], "the client was told of the end")


def test_sessions_are_listed_attached_to_and_killed(published: Any) -> None:
    first = published.pty.create(cmd="echo from the start; sleep 1000")
    listed = published.pty.list()
    assert [(session.pty_id, session.exit_code) for session in listed] == [(first.id, None)]
    screen = Screen()
    second = published.pty.attach(first.id, on_data=screen)
    screen.wait_for(b"from the start")
    second.kill()
    assert second.wait(timeout=30) != 0
    assert first.wait(timeout=30) != 0
    wait_until(lambda: published.pty.list()[0].exit_code is not None, "the list tells of the end")


def test_a_terminal_while_a_cell_runs(published: Any) -> None:
    screen = Screen()
    cell = threading.Thread(
        target=published.run_code, args=("import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)",)
    )
    cell.start()
    terminal = published.pty.create(cmd="bash --norc", on_data=screen)
    terminal.send_input("touch /tmp/go; echo done-$?\n")
    screen.wait_for(b"done-0")
    cell.join(30)
    assert not cell.is_alive()
    terminal.close()
