"""Runs one installation, in a sandbox of its own with the rules of the one that asked. No code of a package runs."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ramet.engine.cells.cell import Cell, Collected
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.packages.requester import Requester
from ramet.engine.packages.requirements import Requirements
from ramet.engine.packages.trees import ABOUT_BYTES_AT_MOST, About
from ramet.errors import RametError
from ramet.isolation.files.skeleton import GUEST_FOLDER
from ramet.isolation.kernel.syscalls import open_in_root
from ramet.isolation.thread_work import finish
from ramet.protocol.calls import Outcome
from ramet.protocol.guest import Rich
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import SandboxSpec

_FOLDER = "/var/tmp/ramet-packages"
_LINE_CHARACTERS_AT_MOST = 500
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from ramet_guest.packaging.installer import main; sys.exit(main(sys.argv[2]))"
)

MakeSandbox = Callable[[SandboxSpec], Awaitable[Sandbox]]


class InstallFailed(Exception):
    """pip failed. The requesting sandbox then runs pip itself, which prints the reason."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed tree. It lives in the sandbox, which the caller must close."""

    sandbox: Sandbox
    about: About
    tree: int  # a descriptor that the caller must close


async def list_base(make: MakeSandbox, requester: Requester, seconds: float) -> About:
    """List the packages that every sandbox of this kind begins with, and pip's default index.

    Uses a fresh sandbox, in which no code of the owner has run that could forge the list. Raises InstallFailed or
    RametError.
    """
    # All sandboxes of the owner share the answer: one with a hundredth of a processor must not delay the others.
    limits = replace(requester.limits, cpus=max(1.0, requester.limits.cpus))
    sandbox = await make(SandboxSpec(requester.template, limits, owner=requester.owner))
    try:
        await _run(sandbox, requester, {"only_base": True}, lambda line: None, seconds)
        return await _about(sandbox)
    finally:
        await sandbox.close()


async def install(
    make: MakeSandbox, requester: Requester, wanted: Requirements, on_line: Callable[[str], None], seconds: float
) -> Installed:
    """Install into a folder of a new sandbox. Raises InstallFailed or RametError."""
    spec = SandboxSpec(
        requester.template,
        requester.limits,
        environment=requester.settings,
        owner=requester.owner,
        network=requester.network,
    )
    sandbox = await make(spec)
    try:
        try:
            await _run(sandbox, requester, wanted.header(), on_line, seconds)
        finally:  # also after a failure: the log then shows which host was refused
            await _tell_attempts(sandbox, requester)
        about = await _about(sandbox)
        tree = open_in_root(sandbox.body.root, f"{_FOLDER}/tree", os.O_RDONLY | os.O_DIRECTORY, follow_links=False)
        return Installed(sandbox, about, tree)
    except OSError as error:
        await sandbox.close()
        raise InstallFailed(f"the installed files cannot be read: {error.strerror}") from None
    except BaseException:
        await sandbox.close()
        raise


async def _run(
    sandbox: Sandbox,
    requester: Requester,
    request: dict[str, object],
    on_line: Callable[[str], None],
    seconds: float,
) -> None:
    words = (
        requester.template.python, "-I", "-S", "-X", "utf8", "-c", _PROGRAM,
        os.path.dirname(GUEST_FOLDER), json.dumps({**request, "folder": _FOLDER}),
    )  # fmt: skip
    ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    # The future may be done when these are called: it is cancelled with the task that awaits it.
    def on_outcome(outcome: Outcome) -> None:
        if not ended.done():
            ended.set_result(outcome)

    def on_error(error: RametError) -> None:
        if not ended.done():
            ended.set_exception(error)

    sandbox.queue.submit(
        Cell("bash", f"exec {shlex.join(words)}".encode(), seconds, _Lines(on_line), on_outcome, on_error)
    )
    outcome = await ended
    if outcome.exit_code != 0:
        raise InstallFailed(f"it ended with exit code {outcome.exit_code}")


async def _tell_attempts(sandbox: Sandbox, requester: Requester) -> None:
    if sandbox.network is not None:
        # The proxy reports in batches; without the flush the last connections would be missing.
        await sandbox.network.flush()
        requester.on_attempts(sandbox.network.log.attempts())


async def _about(sandbox: Sandbox) -> About:
    # `finish`: a cancelled caller closes the sandbox next, and the thread must not use its root descriptor then.
    return await finish(asyncio.to_thread(_read_about, sandbox), lambda _: None)


def _read_about(sandbox: Sandbox) -> About:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = open_in_root(sandbox.body.root, f"{_FOLDER}/about.json", flags, follow_links=False)
    with open(descriptor, "rb") as file:
        data = file.read(ABOUT_BYTES_AT_MOST + 1)
    try:
        return About.read(data)
    except ValueError as error:
        raise InstallFailed(f"the list of installed packages cannot be read: {error}") from None


class _Lines:
    """The sink of an installation's cell: passes lines of stdout on and keeps nothing."""

    live = True

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def output(self, stream: int, data: bytes) -> None:
        if stream != 0:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:_LINE_CHARACTERS_AT_MOST]
        for line in lines:
            self._on_line(line.decode("utf-8", "replace")[:_LINE_CHARACTERS_AT_MOST])

    def rich(self, rich: Rich) -> None:
        pass

    def full(self, when_room: Callable[[], None]) -> bool:
        return False

    def collect(self, then: Callable[[Collected], None]) -> None:
        then(Collected())

    def abandon(self) -> None:
        pass

    def discard(self) -> None:
        pass
