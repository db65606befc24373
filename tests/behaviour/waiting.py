"""Waits that end on their condition and are bounded, and cells that wait for a word from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ramet import Event
from tests.behaviour.faces import AnySandbox

WAIT_SECONDS = 60

# A cell that says that it runs, and goes on when the file /root/go is there.
UNTIL_GO = """
import os, time
print("begun", flush=True)
while not os.path.exists("/root/go"):
    time.sleep(0.005)
"""

# Defines a thread that does something when the file /root/go is there: after its cell, not during it.
AFTER_GO = """
import os, threading, time
def after_go(action):
    def wait():
        while not os.path.exists("/root/go"):
            time.sleep(0.005)
        action()
        open("/root/acted", "w").close()
    threading.Thread(target=wait, daemon=True).start()
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Asks again and again until the condition holds."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited {WAIT_SECONDS} s in vain until {what}"
        time.sleep(0.005)


def go(sandbox: AnySandbox) -> None:
    """Lets a cell that waits for /root/go end."""
    sandbox.files.write("/root/go", b"")


def read_until(events: Iterator[Event], text: str) -> str:
    """Reads events until stdout holds the text; all of stdout so far."""
    read = ""
    while text not in read:
        event = next(events)
        assert event.type != "exit", f"the cell ended without {text!r}: {event.result}"
        if event.type == "stdout":
            read += event.data
    return read


def wait_until_running(sandbox: AnySandbox, waiting: int = 0) -> None:
    """A cell runs, and so many wait behind it."""

    def reached() -> bool:
        info = sandbox.info()
        return info.state == "running" and info.waiting == waiting

    wait_until(reached, f"a cell runs and {waiting} wait")
