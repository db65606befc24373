"""Compiles what was read to the list of calls that makes it again, in an order that gives each call what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from ramet.freezing.calls import InjectedCall
from ramet.freezing.descriptors.calls import O_CLOEXEC, CallList
from ramet.freezing.descriptors.kinds import epolls, events, files, locks, pipes, terminals
from ramet.freezing.descriptors.kinds.nameless import NamelessMaker
from ramet.freezing.descriptors.maps import SharedMap, share_again
from ramet.freezing.descriptors.recipes import (
    Dead,
    Description,
    Epoll,
    EventCounter,
    FileWatch,
    InternetSocket,
    Line,
    NamedFile,
    NamelessFile,
    NamelessFolder,
    OpenDescriptors,
    OtherSocket,
    PipeEnd,
    ProcessHandle,
    ProcFile,
    SignalQueue,
    TerminalRecipe,
    Timer,
    UnixSocket,
)
from ramet.freezing.descriptors.sockets import sockets
from ramet.freezing.descriptors.sockets.internet_making import InternetMaker
from ramet.freezing.descriptors.sockets.unix_making import UnixMaker
from ramet.freezing.descriptors.target import LINE_NUMBERS

_Kind = TypeVar("_Kind")


def compile_calls(
    found: OpenDescriptors,
    maps: Sequence[SharedMap],
    main_pid: int,
    children: Mapping[int, int] = MappingProxyType({}),
) -> list[InjectedCall]:
    """Compile the calls for a copy, which is in its pod with the pod's capabilities and "/" as its working folder.

    It starts with the guest's three lines at 1000, 1001 and 1002 and nothing else open, and ends with exactly the
    numbers of the original. `main_pid` is the copy's pid in its pod. `children` maps pids of processes in the
    original's pod to the pids of those that stand for them in the copy's.
    """
    return _Compiler(found, maps, {found.pid: main_pid, **children}).compile()


class _Compiler:
    """The state of one compilation."""

    def __init__(self, found: OpenDescriptors, maps: Sequence[SharedMap], pids: Mapping[int, int]) -> None:
        self._found = found
        self._maps = maps
        self._pids = pids
        numbers = {place.number for each in found.descriptions for place in each.places}
        # Numbers that an epoll still knows but that are not open now must stay free, see `epolls.watch_stale`.
        watched = {entry.number for _, thing in self._all(Epoll).values() for entry in thing.watched}
        self._numbers = numbers
        self._script = CallList(numbers | watched)
        self._slots: dict[int, int] = {}

    def compile(self) -> list[InjectedCall]:
        # Order: memory before the seals that forbid writing to it; listeners before what connects to them (inside the
        # makers); all things before their numbers; numbers before epoll entries, which are registered by number; timers
        # after the epolls are drained, or they could fire into the drain; locks last, because closing any descriptor of
        # a file drops them.
        self._keep_lines()
        self._make_memory()
        self._make_files()
        self._make_events()
        self._make_pipes()
        self._slots.update(terminals.make_terminals(self._script, self._all(TerminalRecipe)))
        self._make_sockets()
        self._watch_stale()
        self._place()
        for each, epoll in self._all(Epoll).values():
            epolls.watch_all(self._script, each, epoll)
        self._script.close_slots()
        for each, timer in self._all(Timer).values():
            events.arm_timer(self._script, each, timer)
        locks.take_locks(self._script, list(self._found.descriptions))
        return self._script.calls

    def _all(self, kind: type[_Kind]) -> dict[int, tuple[Description, _Kind]]:
        """The descriptions of one kind, by index."""
        return {
            index: (each, each.thing)
            for index, each in enumerate(self._found.descriptions)
            if isinstance(each.thing, kind)
        }

    def _keep_lines(self) -> None:
        # The lines are there already, with flags of a new pod's; the original's may differ.
        for index, (each, line) in self._all(Line).items():
            self._script.set_flags("set a line's flags", line.number, each.flags)
            self._slots[index] = self._script.copy("keep a line", line.number)

    def _make_memory(self) -> None:
        """Make nameless files, shared memory that may belong to them, then their seals, which may forbid writing."""
        script, nameless = self._script, self._all(NamelessFile)
        maker = NamelessMaker(script)
        made = maker.make_inodes(list(nameless.values()))
        share_again(script, self._maps, {file.memory: (made[file.inode], file.size) for _, file in nameless.values()})
        for index, (each, file) in nameless.items():
            self._slots[index] = maker.make_description(each, file)
        maker.seal()

    def _make_files(self) -> None:
        script = self._script
        for index, (each, file) in self._all(NamedFile).items():
            self._slots[index] = files.make_named(script, each, file)
        for index, (each, file_of_proc) in self._all(ProcFile).items():
            self._slots[index] = files.make_proc(script, each, file_of_proc, self._pids[self._found.pid])
        for index, (each, _) in self._all(NamelessFolder).items():
            self._slots[index] = files.make_nameless_folder(script, each, index)
        for index in self._all(Dead):
            self._slots[index] = script.copy("copy the dead descriptor", script.dead())

    def _make_events(self) -> None:
        script = self._script
        for index, (each, counter) in self._all(EventCounter).items():
            self._slots[index] = events.make_counter(script, each, counter)
        for index, (each, timer) in self._all(Timer).items():
            self._slots[index] = events.make_timer(script, each, timer)
        for index, (each, queue) in self._all(SignalQueue).items():
            self._slots[index] = events.make_signal_queue(script, each, queue)
        for index, (each, _) in self._all(FileWatch).items():
            self._slots[index] = events.make_file_watch(script, each)
        for index, (each, handle) in self._all(ProcessHandle).items():
            self._slots[index] = events.make_process_handle(script, each, self._pids.get(handle.pid))
        for index in self._all(Epoll):
            self._slots[index] = epolls.make_epoll(script)

    def _make_pipes(self) -> None:
        by_pipe: dict[bytes, list[int]] = {}
        ends = self._all(PipeEnd)
        for index, (_, end) in ends.items():
            by_pipe.setdefault(end.pipe, []).append(index)
        for indices in by_pipe.values():
            slots = pipes.make_pipe(self._script, [ends[index] for index in indices])
            self._slots.update(zip(indices, slots, strict=True))

    def _make_sockets(self) -> None:
        unix = UnixMaker(self._script, self._all(UnixSocket))
        unix.make()
        internet = InternetMaker(self._script, self._all(InternetSocket))
        internet.make()
        self._slots.update(unix.slots)
        self._slots.update(internet.slots)
        for index, (each, other) in self._all(OtherSocket).items():
            self._slots[index] = sockets.make_other(self._script, each, other)

    def _watch_stale(self) -> None:
        for index, (_, epoll) in self._all(Epoll).items():
            epolls.watch_stale(self._script, self._slots[index], epoll, self._slots)

    def _place(self) -> None:
        for index, each in enumerate(self._found.descriptions):
            for place in each.places:
                flags = O_CLOEXEC if place.close_on_exec else 0
                self._script.call(f"place descriptor {place.number}", "dup3", self._slots[index], place.number, flags)
        # Placed last, because the original may have closed a line, or have put something else at its number.
        for number in LINE_NUMBERS:
            if number not in self._numbers:
                self._script.call("close a line that the original had closed", "close", number)
