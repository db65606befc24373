"""What a thawed REPL must know about its new life: its pid, pipes, secrets, environment."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet_guest.repl import Repl


def refresh(repl: Repl) -> None:
    """First frame after a thaw: we are a new process in a new pod."""
    repl.output.remember()
    for descriptor in (1000, 1001, 1002):
        os.set_inheritable(descriptor, False)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    if repl.sources.count == 0:
        draw_fresh_randomness()


def draw_fresh_randomness() -> None:
    """Sandboxes of one template must not draw the same numbers. A fork of a used sandbox keeps its generators."""
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        # With a number it takes microseconds; without one, numpy runs through half a megabyte of code.
        numpy_random.seed(int.from_bytes(os.urandom(4), "little"))
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def configure(environment: dict[str, str] | None, folder: str | None) -> None:
    """Raises OSError or ValueError in words for people."""
    if environment:
        os.environ.update(environment)
        if "TZ" in environment:
            time.tzset()
    if folder is not None:
        os.chdir(folder)
