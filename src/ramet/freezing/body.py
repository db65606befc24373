"""One sandbox's REPL in its pod, from its thaw to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from ramet.errors import ForkFailed, SandboxLost
from ramet.freezing.ancestry import Ancestry
from ramet.freezing.descriptors import Lines
from ramet.freezing.frozen import Frozen
from ramet.freezing.live import Subject
from ramet.freezing.memory_allowance import Claim, MemoryAllowance
from ramet.freezing.process_ends import end_process
from ramet.freezing.resource_limits import resource_limits
from ramet.freezing.sessions import TerminalSession
from ramet.freezing.shared_memory import SharedMemoryWatch
from ramet.freezing.template import environment
from ramet.isolation.kernel.cgroups import Delegation, Surroundings
from ramet.isolation.kernel.terminals import Command, Entering, open_terminal
from ramet.isolation.pods import Pod
from ramet.isolation.walls import read_walls
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import MountSpec, TemplateSpec

_REAP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Death:
    """How a REPL ended."""

    exit_code: int | None
    signal: int | None
    out_of_memory: bool


class PreparedPart(Protocol):
    """What was made for a body while it waited for its first user."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Life:
    """One REPL process with its shadow; a sandbox that recovers gets another."""

    shadow: int  # in the engine's numbering, like repl
    shadow_pidfd: int
    shadow_end: asyncio.Future[None] | None
    repl: int
    repl_pidfd: int
    pid: int  # in the pod
    syscall_at: int
    lineage: frozenset[int]  # pids in their pods of all REPLs that its memory was, itself included
    death: asyncio.Future[Death]
    kills_before: int
    ancestry: Ancestry
    killed: bool = False  # by the engine
    timed_calls: bytes = b""
    starved: bool = False  # it is being ended because it took too much memory


class Body:
    """One sandbox's REPL in its pod. Owned by the engine's sandbox, which closes it."""

    def __init__(
        self,
        template: TemplateSpec,
        mounts: tuple[MountSpec, ...],
        pod: Pod,
        life: Life,
        wake: Callable[[TemplateSpec, Pod], Awaitable[Life]],
        delegation: Delegation,
        surroundings: Surroundings,
        claim: Claim | None = None,
    ) -> None:
        self.template = template
        self.mounts = mounts
        self.pod = pod
        self.life = life
        self.room = MemoryAllowance(pod)
        self._wake = wake
        self._delegation = delegation
        self._surroundings = surroundings
        self._claim = claim  # on the sandbox whose memory this one shares
        self._sessions: set[TerminalSession] = set()  # of terminals, until they are reaped
        # One at a time enters the pod, and none during a revival: what enters holds process ids that the REPL needs.
        self._entering = asyncio.Lock()
        # Freezes under way, each done when it is over. Closing waits for them, and so do terminals that are to be
        # opened: a program that enters during a freeze would neither be stopped nor copied.
        self._freezes: set[asyncio.Future[None]] = set()
        self.prepared: PreparedPart | None = None  # until its first user takes it
        self._snapshots: set[Frozen] = set()  # their shadows are in this pod's groups
        self._killed_snapshots = 0  # of those that were in it: ended by the kernel
        self._killed_before = 0  # of these, when the present life began
        self._closing: asyncio.Task[None] | None = None
        self._shared_memory: SharedMemoryWatch | None = None
        self._watch()

    def __repr__(self) -> str:
        return f"<Body {self.pid} {'dead' if self.death.done() else 'alive'}>"

    @property
    def owner(self) -> str:
        """Whose work on files waits for whose."""
        return self.pod.files.owner

    @owner.setter
    def owner(self, owner: str) -> None:
        self.pod.files.owner = owner

    @property
    def pid(self) -> int:
        return self.life.pid

    @property
    def control(self) -> socket.socket:
        return self.pod.ends.control

    @property
    def stdout(self) -> int:
        return self.pod.ends.stdout

    @property
    def stderr(self) -> int:
        return self.pod.ends.stderr

    @property
    def root(self) -> int:
        return self.pod.root

    @property
    def death(self) -> asyncio.Future[Death]:
        return self.life.death

    @property
    def alive(self) -> bool:
        return not self.life.death.done()

    @property
    def ancestors(self) -> int:
        """Processes that live and that its memory was copied from, one from the other."""
        return self.life.ancestry.living

    def watch(self, watch: SharedMemoryWatch) -> None:
        """Have what its processes share looked at, until it is closed."""
        self._shared_memory = watch
        watch.add(self._pid_namespace, self.pod.limits.memory_bytes, self.note_starved)

    @property
    def _pid_namespace(self) -> int:
        return self.pod.namespaces[-1]

    def note_starved(self, pid: int) -> None:
        """A process of the pod is about to be ended because of its memory. From any thread."""
        if pid == self.life.repl:
            self.life.starved = True

    async def refresh(self) -> None:
        """Make changes of the host visible in folders that are shown read-only."""
        await self.pod.shown.refresh()

    def _watch(self) -> None:
        asyncio.get_running_loop().add_reader(self.life.repl_pidfd, self._on_end)

    def _on_end(self) -> None:
        """The REPL is a zombie: reap it, and end its shadow at once, because the shadow holds the memory."""
        life = self.life
        try:
            status = os.waitid(os.P_PIDFD, life.repl_pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            status = None
        else:
            if status is None:
                return  # not yet: the engine never waits here
        asyncio.get_running_loop().remove_reader(life.repl_pidfd)
        os.close(life.repl_pidfd)
        life.repl_pidfd = -1
        life.shadow_end = end_process(life.shadow_pidfd)
        life.ancestry.ended()
        if status is None or status.si_code == os.CLD_EXITED:
            death = Death(status.si_status if status is not None else None, None, False)
        else:
            killed = status.si_status == signal.SIGKILL
            death = Death(None, status.si_status, killed and (life.starved or self._starved(life)))
        if not life.death.done():
            life.death.set_result(death)

    def _starved(self, life: Life) -> bool:
        """Whether it was killed because memory ran out: in its own group or, if it has none, in the one around all."""
        if "memory" in self._delegation.folders:
            # The kernel rather ends kept states than the REPL, and counts them as well.
            others = self._count_killed() - self._killed_before
            return self.pod.group is not None and self.pod.group.out_of_memory_kills() > life.kills_before + others
        return not life.killed and self._surroundings.explain(life.kills_before)

    def signal(self, number: int) -> None:
        self.life.killed |= number == signal.SIGKILL
        if self.life.repl_pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.life.repl_pidfd, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    async def _ended(self) -> None:
        self.kill()
        await self.life.death
        if self.life.shadow_end is not None:
            await self.life.shadow_end

    async def revive(self) -> None:
        """A fresh REPL in the same pod, thawed from the template. Everything else in the pod is ended first.

        Raises LimitReached, TemplateFailed, or RametError where the template cannot be thawed.
        """
        await self._ended()
        async with self._entering:  # a program that enters meanwhile would hold ids that the REPL needs
            await self.pod.empty()
            self._killed_before = self._count_killed()
            self.life = await self._wake(self.template, self.pod)
        self._release_claim()
        self._watch()

    def subject(self) -> Subject:
        """Itself, for a freeze."""
        life, pod = self.life, self.pod
        if life.repl_pidfd < 0:
            raise ForkFailed("the sandbox could not be frozen: its REPL has ended")
        lines = Lines(pod.ends.control_inode, os.fstat(pod.ends.stdout).st_ino, os.fstat(pod.ends.stderr).st_ino)
        return Subject(
            repl=life.repl,
            repl_pidfd=os.dup(life.repl_pidfd),
            shadow=life.shadow,
            shadow_pidfd=os.dup(life.shadow_pidfd),
            init=pod.init,
            terminals=tuple((session.pid, os.dup(session.pidfd)) for session in self._sessions),
            syscall_at=life.syscall_at,
            timed_calls=life.timed_calls,
            pod=pod,
            lines=lines,
        )

    async def open_terminal(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        folder: str | None,
        columns: int,
        rows: int,
        commands: str | None = None,
    ) -> TerminalSession:
        """A program on a terminal of its own in the pod, beside the REPL and behind the same walls."""
        everything = {**environment(self.template, self.pod.limits.cpus), "TERM": "xterm-256color", **variables}
        if commands is not None and commands not in everything["PATH"].split(":"):
            everything["PATH"] = f"{commands}:{everything['PATH']}"
        command = Command(tuple(arguments), everything, folder)
        async with self._entrance():  # no freeze begins before the program is among the sessions that it stops
            others = frozenset({self.life.repl, *(session.pid for session in self._sessions)})
            entering = Entering(self.pod, command, resource_limits(self.pod.limits, self._delegation), others)
            with contextlib.ExitStack() as undo:
                undo.callback(entering.close)
                session = await self._enter(entering, columns, rows)
                undo.pop_all()
        with contextlib.closing(entering), contextlib.ExitStack() as undo:
            undo.callback(session.close_master)
            undo.callback(session.kill)
            with session.held():
                await entering.run(session.leader)
            undo.pop_all()
        return session

    async def _enter(self, entering: Entering, columns: int, rows: int) -> TerminalSession:
        """The program is there, and among the sessions that a freeze stops, before it is let run."""
        master, slave = open_terminal(self.pod.root, columns, rows)
        with contextlib.ExitStack() as always, contextlib.ExitStack() as undo:
            always.callback(os.close, slave)
            undo.callback(os.close, master)
            session = TerminalSession(master, await entering.start(slave), self._sessions.discard)
            undo.pop_all()
        self._sessions.add(session)
        return session

    async def listen(self, name: str, backlog: int) -> socket.socket | None:
        """A unix socket at an abstract name in the pod's own network. None: the name is taken there."""
        return await self.pod.listen(name, backlog)

    async def listen_tcp(self, port: int, backlog: int) -> socket.socket | None:
        """A TCP socket that listens on the pod's loopback. None: the port is taken there."""
        return await self.pod.listen_tcp(port, backlog)

    async def bind_udp(self, port: int) -> socket.socket | None:
        return await self.pod.bind_udp(port)

    async def plain_socket(self) -> socket.socket:
        """A TCP socket of the pod's network that is not connected to anything."""
        return await self.pod.plain_socket()

    async def netlink(self, family: int) -> socket.socket:
        return await self.pod.netlink(family)

    @contextlib.asynccontextmanager
    async def _entrance(self) -> AsyncIterator[None]:
        """Inside, no other program is on its way into the pod, and the sandbox is not being frozen."""
        while True:
            if self._freezes:
                await asyncio.wait(self._freezes)
            async with self._entering:
                if self._freezes:
                    continue  # it began while this waited for the lock, and waits for the lock itself now
                if self._closing is not None or not self.pod.alive:
                    raise SandboxLost("cannot open a terminal: the sandbox is closing, or its pod has ended")
                yield
                return

    @contextlib.asynccontextmanager
    async def being_frozen(self) -> AsyncIterator[None]:
        """Inside, shadows that no snapshot owns yet may be in the pod's groups: closing waits until this is over.

        No program is on its way into the pod either, and no session is reaped, so their numbers mean them.
        """
        over = asyncio.get_running_loop().create_future()
        self._freezes.add(over)  # before the lock: from here on no other program gets in
        try:
            async with self._entering:
                pass  # a program that is half-way in has arrived
            with contextlib.ExitStack() as holds:
                for session in self._sessions:
                    holds.enter_context(session.held())
                yield
        finally:
            self._freezes.discard(over)
            over.set_result(None)

    def keep(self, frozen: Frozen) -> None:
        """The shadow of a new snapshot of this sandbox is in the pod's groups, which cannot go before it."""
        self._killed_snapshots += sum(known.killed for known in self._snapshots if known.closed)
        self._snapshots = {known for known in self._snapshots if not known.closed} | {frozen}

    def _count_killed(self) -> int:
        return self._killed_snapshots + sum(known.killed for known in self._snapshots)

    def _release_claim(self) -> None:
        """Its memory is not the one that it was thawed with any more."""
        if self._claim is not None:
            self._claim.let_go()
            self._claim = None

    async def close(self) -> None:
        # One task for all callers, and shielded: a caller that is cancelled must not stop it half-way.
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.room.close()
        if self.prepared is not None:
            self.prepared.close()
        for session in self._sessions:
            session.kill()
        await self._ended()
        self._release_claim()
        if self._freezes:  # a freeze may have put a shadow into the pod's groups that ``_snapshots`` does not have yet
            await asyncio.wait(self._freezes)
        await self._sessions_reaped()
        shadows = [frozen.shadow for frozen in self._snapshots if not frozen.closed]
        if self.pod.group is not None and any(shadows):
            await asyncio.to_thread(self.pod.group.evict, [shadow for shadow in shadows if shadow])
        if self._shared_memory is not None:  # before another pod's namespace can have the same number
            self._shared_memory.discard(self._pid_namespace)
        await self.pod.close()

    async def _sessions_reaped(self) -> None:
        """The pod's init ends only after all others were reaped, and these are the engine's to reap."""
        async with self._entering:
            pass  # a program that was half-way in is among the sessions now; no other gets in, as ``_closing`` is set
        for session in self._sessions:
            session.kill()
        if self._sessions:
            await asyncio.wait([session.reaped for session in self._sessions], timeout=_REAP_SECONDS)

    def usage(self) -> dict[str, int]:
        """What the control group and the kernel say of the REPL's memory. Reading it costs milliseconds."""
        found = self.pod.group.usage() if self.pod.group is not None else {}
        if self.life.repl_pidfd < 0:
            return found
        with contextlib.suppress(OSError, ValueError):
            private = shared = 0
            with open(f"/proc/{self.life.repl}/smaps_rollup", encoding="ascii") as lines:
                for line in lines:
                    # Clean pages are a file's, an image's for instance: in the page cache, and any process may share
                    # them, also where this one is the first.
                    if line.startswith("Private_") and not line.startswith("Private_Clean"):
                        private += int(line.split()[1]) * 1024
                    elif line.startswith(("Shared_", "Private_Clean")):
                        shared += int(line.split()[1]) * 1024
            found["private_bytes"], found["shared_bytes"] = private, shared
            with open(f"/proc/{self.life.repl}/status", encoding="ascii") as lines:
                # A process that is ending has no such line any more.
                found["page_table_bytes"] = sum(
                    int(line.split()[1]) * 1024 for line in lines if line.startswith("VmPTE:")
                )
        return found

    def processor_seconds(self) -> float:
        """The time that the threads of the REPL have worked, without that of its children. Takes a microsecond."""
        if self.life.repl_pidfd < 0:
            return 0.0
        try:
            return time.clock_gettime((~self.life.repl << 3) | 2)  # as clock_getcpuclockid(3) makes it
        except OSError:
            return 0.0

    def unique_bytes(self) -> int:
        """Memory charged to its cgroup, or without one the pages it has touched. Cheap either way."""
        counted = self.pod.group.memory_bytes() if self.pod.group is not None else 0
        if counted or self.life.repl_pidfd < 0:
            return counted
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{self.life.repl}/stat", encoding="utf-8", errors="replace") as file:
                return int(file.read().rpartition(")")[2].split()[7]) * resource.getpagesize()  # minor faults
        return 0

    def walls(self) -> dict[str, object]:
        repl = self.life.repl if self.life.repl_pidfd >= 0 else None
        return read_walls(repl, self.pod.limits, self._delegation, self.pod.direct)
