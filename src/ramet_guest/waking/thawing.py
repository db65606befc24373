"""Steps that a REPL takes after a thaw: it has a new pid, new pipes, new secrets and a new environment."""

from __future__ import annotations

import ast
import os
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from ramet_guest.cells.asynchronous import has_work
from ramet_guest.channel import encode_header
from ramet_guest.processes.output import SPARES, STDERR, STDOUT
from ramet_guest.waking import orphans, reseeding
from ramet_guest.wire import REPL_CONTROL, REPL_STDERR, REPL_STDOUT

if TYPE_CHECKING:
    from ramet_guest.repl import Repl


def refresh(repl: Repl) -> None:
    """Adopts the new process and its pod. Runs at the first frame after a thaw."""
    try:
        if repl.channel.replaced() and not repl.fresh:
            orphans.disown()
    finally:
        # Adopt last: threads that watch pool workers ask `channel.replaced()`, or look for marks that `disown` sets, to
        # learn that their workers are gone. If the channel were adopted first, neither would show it for a moment.
        repl.channel.adopt()
    # The pipes are new. The last cell may have closed or redirected 1 and 2; the spare descriptors always lead to them.
    repl.output.remember(SPARES[STDOUT], SPARES[STDERR])
    for descriptor in (REPL_CONTROL, REPL_STDOUT, REPL_STDERR):
        os.set_inheritable(descriptor, False)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    if repl.tools is not None:
        repl.tools.forget_connections()
    if repl.fresh:
        repl.fresh = False
        draw_fresh_randomness()


def wake(repl: Repl) -> None:
    """Does in advance what every cell does, while no caller waits.

    A thawed process copies each page that it shares with its parent at the first write to it. Leaves no name, number,
    output or answer behind.
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
    """Prepares the copy of a sandbox; returns an error message or None.

    Only this frame shows that we are a copy if the process id was kept.
    """
    problems: list[BaseException | None] = []
    try:
        refresh(repl)
        if stir:
            stir_secrets()
        if reseed:
            # Reseeding calls methods of the user's generators, which may be user code.
            problems.append(repl.gate.run(reseeding.reseed_all, repl.namespace))
    except Exception as error:
        problems.append(error)
    problem = next((error for error in problems if error is not None), None)
    return None if problem is None else f"{type(problem).__name__}: {problem}"[:1000]


def stir_secrets() -> None:
    """Renews secrets that libraries renew only when the process id changes.

    These are OpenSSL's generators and the names of temporary files. Needed when the thaw kept the process id.
    """
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(64), 64.0)
    # The package cryptography contains an OpenSSL of its own.
    own = getattr(sys.modules.get("cryptography.hazmat.bindings._rust"), "_openssl", None)
    if own is not None and hasattr(own.lib, "RAND_add"):
        own.lib.RAND_add(os.urandom(64), 64, 64.0)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        # Changed in place, because code may hold the object. It draws a fresh seed when `_rng_pid` is not the current
        # pid.
        sequence = vars(tempfile).get("_name_sequence")
        if sequence is not None:
            sequence._rng_pid = None


def runs_loops(repl: Repl) -> bool:
    """Whether an asyncio loop is running in some thread, or may start to run before the engine freezes this process."""
    if "asyncio" not in sys.modules:
        return False
    loop = repl.loops.loop
    if loop is not None and not loop.is_closed() and has_work(loop):
        return True
    return any(is_running_loop(frame) for frame in sys._current_frames().values())


def is_running_loop(frame: FrameType | None) -> bool:
    # uvloop runs its loop in C, but under methods of these names too.
    while frame is not None:
        if frame.f_code.co_name in ("run_forever", "run_until_complete", "_run_once"):
            return True
        frame = frame.f_back
    return False


def draw_fresh_randomness() -> None:
    """Seeds the global generators anew, because sandboxes of one template must not draw the same numbers.

    A fork of a used sandbox keeps the state of its generators.
    """
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        # Seeding with a number takes microseconds; without one, numpy runs through half a megabyte of code.
        numpy_random.seed(int.from_bytes(os.urandom(4), "little"))
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def configure(
    environment: dict[str, str] | None, folder: str | None, forget: dict[str, str] | None, commands: str | None
) -> None:
    """Sets environment, commands folder and current folder.

    Removes a variable of `forget` only if it still has the value that the engine gave it: otherwise user code has set
    its own. Raises OSError or ValueError with a message for users.
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
        # Tells uv where to install: into the active environment, or into the only Python, as in a container.
        if sys.prefix != sys.base_prefix:
            os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
        else:
            os.environ.setdefault("UV_SYSTEM_PYTHON", "1")
    if folder is not None:
        os.chdir(folder)
