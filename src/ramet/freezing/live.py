"""Freezing a sandbox that runs, into a snapshot that any number of sandboxes can be thawed from."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

from ramet.errors import ForkFailed, RametError
from ramet.freezing import _core
from ramet.freezing.calls import InjectedCall, ResourceLimit, lowered_limits, set_limits, widest_table
from ramet.freezing.descriptors import (
    Lines,
    OpenDescriptors,
    PausedProcess,
    SharedMap,
    check_amount,
    compile_calls,
    privatize,
    read_descriptors,
    read_shared_maps,
    with_ranges,
)
from ramet.freezing.descriptors.recipes import (
    Dead,
    FileWatch,
    InternetSocket,
    NamedFile,
    NamelessFile,
    OtherSocket,
    ProcessHandle,
    TerminalRecipe,
)
from ramet.freezing.failures import failure
from ramet.freezing.process_state import ProcessState, inner_pid, read_process
from ramet.isolation.files.layers import FileImage
from ramet.isolation.pods import Pod
from ramet.protocol import guest
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Limits
from ramet_guest.wire import SCRATCH_END, SCRATCH_START

_PAUSE_SECONDS = 3.0  # a sandbox that does not stop by then is left alone: others wait for the tracer
_RESERVED_START, _RESERVED_END = SCRATCH_START, SCRATCH_END
_GONE = (errno.ENOENT, errno.ESRCH)  # what /proc says of a process that was killed while it was read
_COPY_SECONDS = 5.0  # without shared memory
_NOT_AS_BEFORE = (Dead, FileWatch, ProcessHandle, InternetSocket, OtherSocket, TerminalRecipe)


@dataclass(frozen=True, slots=True)
class Subject:
    """A sandbox to be frozen, in the engine's numbering. Its pidfds are its own, to be closed when it is done with."""

    repl: int
    repl_pidfd: int
    shadow: int
    shadow_pidfd: int
    init: int
    terminals: tuple[tuple[int, int], ...]  # leaders of their sessions, the engine's children like the REPL; pidfds
    syscall_at: int
    timed_calls: bytes  # found by the pause before this one
    pod: Pod
    lines: Lines

    def check_alive(self) -> None:
        """Raise ForkFailed if the REPL or its shadow has ended: their pids may belong to other processes now."""
        ended = select.poll()
        ended.register(self.repl_pidfd, select.POLLIN)
        ended.register(self.shadow_pidfd, select.POLLIN)
        if ended.poll(0):
            raise ForkFailed(
                "the sandbox could not be frozen: its REPL, or the shadow process that is copied, has ended"
            )

    def close(self) -> None:
        for descriptor in (self.repl_pidfd, self.shadow_pidfd, *(pidfd for _, pidfd in self.terminals)):
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class SandboxRecipes:
    """What was read of a sandbox while it stood still: plain data, from which any number of copies get what it had."""

    process: ProcessState
    descriptors: OpenDescriptors
    maps: tuple[SharedMap, ...]
    image: FileImage
    timed_calls: bytes
    thread_ids: frozenset[int]  # but the main one's
    limits: Limits
    copy_seconds: float  # that copying its shared memory may take
    alone: bool = False  # no other process was in its pod
    imported: bool = False  # from an image that another store wrote: it decides on nothing that takes a capability

    @property
    def faithful(self) -> bool:
        """Whether a copy has all of it: no child, no connection, nothing else that the kernel does not hand over."""
        if not self.alone or self.process.children or self.descriptors.lost:
            return False
        return not any(isinstance(each.thing, _NOT_AS_BEFORE) for each in self.descriptors.descriptions)

    @property
    def children(self) -> tuple[tuple[int, int], ...]:
        return self.process.children

    @property
    def taken_pids(self) -> frozenset[int]:
        return self.thread_ids | {pid for pid, _ in self.process.children}

    @property
    def greeting(self) -> bytes:
        return guest.wake()

    def failure(self, error: _core.FreezeError) -> RametError:
        return failure("a copy of the sandbox could not be thawed", error)

    def calls(self, main_pid: int, limits: Limits, usual: tuple[ResourceLimit, ...]) -> tuple[InjectedCall, ...]:
        if self.imported:
            # All else is what the image asks for, and comes when the capabilities are gone.
            return tuple(widest_table())
        resources = set_limits(self._resource_limits(limits, usual))
        return (*widest_table(), *self._made(main_pid), *resources, *self.process.timer_calls())

    def powerless_calls(self, main_pid: int, usual: tuple[ResourceLimit, ...]) -> tuple[InjectedCall, ...]:
        if not self.imported:
            return ()
        return (*self._made(main_pid), *lowered_limits(self.process.limits, usual), *self.process.timer_calls())

    def _made(self, main_pid: int) -> list[InjectedCall]:
        children = {pid: pid for pid, _ in self.process.children}  # they stand there, dead, under the ids they had
        made = compile_calls(self.descriptors, self.maps, main_pid, children)
        return [*made, *self.process.calls()]

    def _resource_limits(self, limits: Limits, usual: tuple[ResourceLimit, ...]) -> tuple[ResourceLimit, ...]:
        """As they were; where a copy is given other limits than the sandbox had, those that follow from them."""
        kept = self.process.limits
        if limits == self.limits:
            return kept
        replaced = {kind for kind, _, _ in usual}
        return (*(limit for limit in kept if limit[0] not in replaced), *usual)


@dataclass(frozen=True, slots=True)
class FrozenCopy:
    """The result of a freeze."""

    snapshot: _core.Snapshot
    recipes: SandboxRecipes
    pause_seconds: float
    stragglers: int  # tasks that could not be let go yet


def freeze(subject: Subject, on_read: Callable[[SandboxRecipes], None], stay_stopped: bool = False) -> FrozenCopy:
    """Runs in the tracer's thread: ptrace binds what is stopped to it.

    Calls `on_read` with what was read before the memory is copied: the event loop plans the copies in that time.
    ``stay_stopped``: the process does nothing any more that the copy does not know of, until it gets SIGCONT.
    """
    began = perf_counter()
    subject.check_alive()
    paused = _core.pause(
        subject.repl, subject.repl_pidfd, subject.shadow, subject.init, subject.terminals, subject.syscall_at,
        subject.timed_calls, _PAUSE_SECONDS,
    )  # fmt: skip
    recipes = None
    try:
        # Again: it may have been killed before the pause, and its number given to another process.
        subject.check_alive()
        recipes = _read(subject, paused)
        on_read(recipes)
        snapshot = _core.copy(paused, tuple(privatize(recipes.maps)), _COPY_SECONDS + recipes.copy_seconds)
        if stay_stopped:
            # Queued while every thread stands: the first one that is let go takes it before it runs a single
            # instruction of its own, and the kernel stops the others with it.
            with suppress(ProcessLookupError):  # it was killed meanwhile, and does nothing any more anyway
                signal.pidfd_send_signal(subject.repl_pidfd, signal.SIGSTOP)
    except BaseException as error:
        if recipes is not None:
            recipes.image.close()
        if isinstance(error, OSError):
            raise _read_error(error) from error
        raise
    finally:
        _core.resume(paused)
    pause_seconds = perf_counter() - began
    return FrozenCopy(snapshot, recipes, pause_seconds, _core.serve_stragglers())


def _read(subject: Subject, paused: _core.Paused) -> SandboxRecipes:
    children, processes, timers, timed_calls, thread_ids = _core.paused_facts(paused)
    process = read_process(subject.repl, children, timers)
    pids = {pid: thread_ids[0] if pid == subject.repl else inner_pid(pid) for pid in processes}
    target = PausedProcess(subject.repl, subject.repl_pidfd, subject.pod.root, pids, subject.lines)
    maps = read_shared_maps(target)
    _check_reserved(maps)
    descriptors = read_descriptors(target)
    things = [each.thing for each in descriptors.descriptions]
    files = [thing for thing in things if isinstance(thing, NamelessFile)]
    maps = with_ranges(maps, {file.memory: file.ranges for file in files if file.ranges is not None})
    group = subject.pod.group
    copy_seconds = check_amount(maps, group.memory_at_most() if group is not None and maps else 0)
    open_files = [thing.path for thing in things if isinstance(thing, NamedFile)]
    image = FileImage.capture(subject.pod, open_files)
    others = frozenset(thread_ids[1:])
    alone = set(processes) <= {subject.repl, subject.init}
    return SandboxRecipes(
        process, descriptors, maps, image, timed_calls, others, subject.pod.limits, copy_seconds, alone
    )


def _read_error(error: OSError) -> RametError:
    if error.errno in _GONE:
        return ForkFailed("the sandbox could not be frozen: its REPL ended meanwhile")
    return failure("the sandbox could not be frozen", error)


def _check_reserved(maps: Sequence[SharedMap]) -> None:
    """Where a copy's calls are laid out there can be no memory that others write to."""
    if any(shared.start < _RESERVED_END and shared.start + shared.length > _RESERVED_START for shared in maps):
        raise ForkFailed(
            f"the sandbox could not be frozen: it shares memory at {_RESERVED_START:#x}, which is reserved for forks",
            hint="let the kernel choose where shared memory is mapped",
        )


def discard(taken: FrozenCopy) -> None:
    """End a snapshot whose caller was cancelled. Runs in the tracer's thread, like the freeze."""
    _core.end_snapshot(taken.snapshot)
    taken.recipes.image.close()
