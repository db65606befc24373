"""Records of a paused process's descriptors: plain data, from which any number of copies can be made."""

from __future__ import annotations

from typing import TypeAlias

from ramet.protocol.lazy_dataclasses import dataclass

Inode: TypeAlias = tuple[int, int]  # device and inode number
# Inode number and name of nameless memory, as /proc shows them for a descriptor and for a mapping. Without the device,
# because an overlay shows another one in /proc/<pid>/maps than in stat.
Memory: TypeAlias = tuple[int, bytes]
Ranges: TypeAlias = tuple[tuple[int, int], ...]  # begin and end of each, in order


@dataclass(frozen=True, slots=True)
class Line:
    """One of the guest's lines to the engine. The copy has its own under this number."""

    number: int


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file, folder or device that has a path."""

    path: bytes
    seekable: bool
    # False: it may be missing in the copy (a folder of the host, /proc). Then it becomes a dead descriptor.
    expected: bool


@dataclass(frozen=True, slots=True)
class ProcFile:
    """A file of the pod's /proc about the paused process itself."""

    below: bytes  # the path below /proc/<pid>


@dataclass(frozen=True, slots=True)
class Extent:
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class NamelessFile:
    """A regular file without a path: deleted, made with O_TMPFILE, or a memfd."""

    inode: Inode
    memory: Memory
    name: bytes  # of a memfd
    folder: bytes | None  # where it was; None for a memfd
    linkable: bool
    mode: int
    size: int
    extents: tuple[Extent, ...]
    seals: int | None
    ranges: Ranges | None = None  # where there is data, if it is also mapped; None: unknown


@dataclass(frozen=True, slots=True)
class NamelessFolder:
    """A folder that was removed while it was open."""


@dataclass(frozen=True, slots=True)
class PipeEnd:
    """One description of a pipe. One of those that can be read holds the contents."""

    pipe: bytes  # equal for all ends of one pipe
    path: bytes | None  # for a FIFO
    capacity: int
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class EventCounter:
    count: int
    semaphore: bool


@dataclass(frozen=True, slots=True)
class Timer:
    clock: int
    cancel_on_set: bool
    ticks: int
    deadline: int  # nanoseconds of its clock; 0: not armed
    interval: int


@dataclass(frozen=True, slots=True)
class SignalQueue:
    mask: int


@dataclass(frozen=True, slots=True)
class FileWatch:
    """An inotify instance. Its watches are not copied."""


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    pid: int  # in the pod; 0: it has ended


@dataclass(frozen=True, slots=True)
class EpollEntry:
    """One entry of an epoll."""

    number: int  # at registration
    events: int
    data: int
    target: int  # index of the description
    in_place: bool  # whether the number still belongs to that description
    ready: int  # for a spent entry (EPOLLONESHOT): events that it can be spent on again


@dataclass(frozen=True, slots=True)
class Epoll:
    watched: tuple[EpollEntry, ...]
    quiet: bool  # whether it had nothing to report


@dataclass(frozen=True, slots=True)
class SocketOption:
    level: int
    option: int
    value: bytes


@dataclass(frozen=True, slots=True)
class SocketFacts:
    family: int
    type: int
    protocol: int
    options: tuple[SocketOption, ...]  # that differ from those of a new socket
    reuses_address: bool


@dataclass(frozen=True, slots=True)
class UnixPath:
    """Where a unix socket is bound in the file tree."""

    folder: bytes  # absolute
    name: bytes  # in that folder
    mode: int
    deleted: bool


@dataclass(frozen=True, slots=True)
class Message:
    data: bytes
    source: tuple[str, int] | bytes | None


@dataclass(frozen=True, slots=True)
class UnixSocket:
    facts: SocketFacts
    inode: int
    peer: int  # inode of the other end, 0 if there is none
    name: bytes | None  # as given to bind
    path: UnixPath | None
    listening: bool
    connected: bool
    backlog: int
    waiting: tuple[int, ...]  # inodes of connections not yet accepted
    shutdown: int
    stream: bytes
    messages: tuple[Message, ...]


Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class InternetSocket:
    facts: SocketFacts
    local: Address
    remote: Address | None
    listening: bool
    backlog: int
    waiting: int  # connections not yet accepted
    state: int  # TCP state
    received: bytes
    under_way: int  # bytes sent that the peer has not acknowledged
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class OtherSocket:
    """A socket that is made again without any state."""

    facts: SocketFacts
    bound: bool


@dataclass(frozen=True, slots=True)
class TerminalRecipe:
    index: int
    master: bool
    settings: bytes
    window: bytes
    locked: int
    packets: int


@dataclass(frozen=True, slots=True)
class Dead:
    """Something that cannot exist outside the paused process."""

    what: str


Thing: TypeAlias = (
    Line
    | NamedFile
    | ProcFile
    | NamelessFile
    | NamelessFolder
    | PipeEnd
    | EventCounter
    | Timer
    | SignalQueue
    | FileWatch
    | ProcessHandle
    | Epoll
    | UnixSocket
    | InternetSocket
    | OtherSocket
    | TerminalRecipe
    | Dead
)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A descriptor number."""

    number: int
    close_on_exec: bool


@dataclass(frozen=True, slots=True)
class Lock:
    kind: str  # as in /proc/locks: FLOCK, POSIX or OFDLCK
    exclusive: bool
    file: str
    start: int
    length: int  # 0: to the end


@dataclass(frozen=True, slots=True)
class Description:
    """An open file description: what it is, and its descriptor numbers."""

    places: tuple[TableEntry, ...]
    flags: int  # without O_CLOEXEC, which belongs to the number
    position: int
    thing: Thing
    locks: tuple[Lock, ...]


@dataclass(frozen=True, slots=True)
class OpenDescriptors:
    """Everything that a paused process had open."""

    pid: int  # pid of the process in its pod
    descriptions: tuple[Description, ...]
    lost: tuple[str, ...]  # descriptions of everything that a copy will not have

    def __repr__(self) -> str:
        numbers = sum(len(each.places) for each in self.descriptions)
        return f"<OpenDescriptors {numbers} numbers, {len(self.descriptions)} descriptions, {len(self.lost)} lost>"
