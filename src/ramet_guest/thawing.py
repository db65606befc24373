"""What a thawed REPL must know about its new life: its pid, pipes, secrets, environment."""

from __future__ import annotations

import ast
import os
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from ramet_guest import orphans, reseeding
from ramet_guest.asynchronous import has_work
from ramet_guest.channel import encode_header
from ramet_guest.output import SPARES, STDERR, STDOUT

if TYPE_CHECKING:
    from ramet_guest.repl import Repl


def refresh(repl: Repl) -> None:
    """First frame after a thaw: we are a new process in a new pod."""
    try:
        if repl.channel.replaced() and not repl.fresh:
            orphans.disown()
    finally:
        # Not before: threads ask the channel, or what was marked, whether their workers are here.
        repl.channel.adopt()
    # New pipes. The last cell may have closed or redirected 1 and 2: the spare ones are right in any case.
    repl.output.remember(SPARES[STDOUT], SPARES[STDERR])
    for descriptor in (1000, 1001, 1002):
        os.set_inheritable(descriptor, False)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    if repl.tools is not None:
        repl.tools.forget_connections()
    if repl.fresh:
        repl.fresh = False
        draw_fresh_randomness()


def wake(repl: Repl) -> None:
    """Do what any cell makes us do, while nobody waits: pages that we share with our parent are copied when written to.

    It leaves nothing behind: no name, number, output or answer.
    """
    gate = repl.gate
    gate.begin()
    try:
        for descriptor in (1, 2):
            with suppress(OSError):
                os.fstat(descriptor)
        tree = ast.parse("0", "<wake>", "exec")
        gate.run(exec, compile(tree, "<wake>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {})
        gate.run(sys.displayhook, None)
        encode_header({"id": 0, "exit_code": 0, "error": None, "interrupted": False})
    finally:
        gate.end()


def thawed(repl: Repl, reseed: bool, stir: bool) -> str | None:
    """We are the copy of a sandbox. Where its process id was kept, nothing but this frame tells."""
    problems: list[BaseException | None] = []
    try:
        refresh(repl)
        if stir:
            stir_secrets()
        if reseed:
            # Seeds of generators may be user code.
            problems.append(repl.gate.run(reseeding.reseed_all, repl.namespace))
    except Exception as error:
        problems.append(error)
    problem = next((error for error in problems if error is not None), None)
    return None if problem is None else f"{type(problem).__name__}: {problem}"[:1000]


def stir_secrets() -> None:
    """What is drawn anew when the process id has changed has to be told when it was kept: OpenSSL, names of files."""
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(64), 64.0)
    # The package cryptography brings an OpenSSL of its own.
    own = getattr(sys.modules.get("cryptography.hazmat.bindings._rust"), "_openssl", None)
    if own is not None and hasattr(own.lib, "RAND_add"):
        own.lib.RAND_add(os.urandom(64), 64, 64.0)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        # In place: code may hold the sequence. It takes fresh numbers when its process id is another than this.
        sequence = vars(tempfile).get("_name_sequence")
        if sequence is not None:
            sequence._rng_pid = None


def runs_loops(repl: Repl) -> bool:
    """Whether an asyncio loop is running in some thread, or may be when the next instant is frozen."""
    if "asyncio" not in sys.modules:
        return False
    loop = repl.loops.loop
    if loop is not None and not loop.is_closed() and has_work(loop):
        return True
    return any(is_running_loop(frame) for frame in sys._current_frames().values())


def is_running_loop(frame: FrameType | None) -> bool:
    # Loops of other makers (uvloop) run in C, but under a method of this name too.
    while frame is not None:
        if frame.f_code.co_name in ("run_forever", "run_until_complete", "_run_once"):
            return True
        frame = frame.f_back
    return False


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


def configure(
    environment: dict[str, str] | None, folder: str | None, forget: dict[str, str] | None, commands: str | None
) -> None:
    """Raises OSError or ValueError in words for people.

    What is to be forgotten was set by the engine; what code has put in its place is its own.
    """
    for name, value in (forget or {}).items():
        if os.environ.get(name) == value:
            del os.environ[name]
    if environment:
        os.environ.update(environment)
        if "TZ" in environment:
            time.tzset()
    if commands is not None:
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        if commands not in folders:
            os.environ["PATH"] = os.pathsep.join([commands, *folders])
        # Where uv installs to. As in an environment that was activated, or in a container that has only one Python.
        if sys.prefix != sys.base_prefix:
            os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
        else:
            os.environ.setdefault("UV_SYSTEM_PYTHON", "1")
    if folder is not None:
        os.chdir(folder)
