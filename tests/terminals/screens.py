"""Somebody who sits at a terminal: types, and looks at what comes, each wait with a bound."""

from __future__ import annotations

import re
import threading

from ramet import Terminal
from ramet.errors import RametError

WAIT_SECONDS = 60


class Screen:
    """Reads a terminal in a thread of its own and keeps everything."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.seen = bytearray()
        self._news = threading.Condition()
        self._over = False
        self._marks = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for piece in self.terminal.read():
                with self._news:
                    self.seen += piece
                    self._news.notify_all()
        except RametError:
            pass  # its sandbox was closed
        finally:
            with self._news:
                self._over = True
                self._news.notify_all()

    @property
    def text(self) -> str:
        return self.seen.decode("utf-8", "replace")

    def type(self, text: str | bytes) -> None:
        self.terminal.write(text)

    def wait_for(self, text: str, times: int = 1) -> None:
        """How typed text and output are mixed depends on who is quicker, as on any terminal."""
        with self._news:
            self._news.wait_for(lambda: self.text.count(text) >= times or self._over, WAIT_SECONDS)
        assert self.text.count(text) >= times, f"waited in vain for {text!r}; so far: {self.text[-2000:]!r}"

    def run(self, command: str) -> str:
        """What a command typed to a shell prints."""
        self._marks += 1
        # Never on the screen as typed: the echo of the command must not be taken for what it prints.
        begin, end = f"<{self._marks}:", f":{self._marks}>"
        self.type(f"printf '<%s:' {self._marks}; {command}; printf ':%s>' {self._marks}\n")
        self.wait_for(end)
        found = re.search(rf"{re.escape(begin)}(.*?){re.escape(end)}", self.text, re.DOTALL)
        assert found, self.text
        return found[1].replace("\r\n", "\n")

    def wait_until_over(self) -> bytes:
        """Everything, after the program has ended."""
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), f"the terminal did not end; so far: {self.text[-2000:]!r}"
        return bytes(self.seen)

    def close(self) -> None:
        self._thread.join(WAIT_SECONDS)
