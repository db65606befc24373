"""The C extension. Every function must be called from one and the same thread."""

class Snapshot:
    """Opaque: a capsule."""

class Paused:
    """Opaque: a capsule."""

class FreezeError(RuntimeError):
    """args: what was tried, and an errno or 0."""

class ReplacedError(FreezeError):
    """The REPL has replaced itself by another program (exec)."""

# shadow, its pidfd, REPL, its pidfd, microseconds of the four parts
Thawed = tuple[int, int, int, int, tuple[float, float, float, float]]
Table = list[tuple[int, bytes, str | None]]  # number, link, text of fdinfo unless it is long
Calls = tuple[tuple[str, int, tuple[int | bytes, ...], bool], ...]

def freeze_template(pid: int, control_descriptor: int, seconds: float, /) -> Snapshot: ...
def thaw(
    snapshot: Snapshot,
    pod_init: int,
    pod_root: int,
    namespaces: tuple[int, ...],
    main_pid: int,
    cgroups: int,
    calls: Calls,
    children: tuple[tuple[int, int], ...],
    consume: bool,
    more: bool,
    seconds: float,
    /,
) -> Thawed: ...
def pause(
    repl: int,
    repl_pidfd: int,
    shadow: int,
    init: int,
    terminals: tuple[tuple[int, int], ...],
    syscall_at: int,
    timed_calls: bytes,
    seconds: float,
    /,
) -> Paused: ...
def paused_facts(paused: Paused, /) -> tuple[tuple[int, ...], list[int], bytes, bytes, tuple[int, ...]]: ...
def copy(paused: Paused, calls: Calls, seconds: float, /) -> Snapshot: ...
def resume(paused: Paused, /) -> None: ...
def serve_stragglers() -> int: ...
def descriptors(pid: int, /) -> Table: ...
def limits(pid: int, /) -> tuple[tuple[int, int, int], ...]: ...
def shared_maps(maps: int, most: int, /) -> list[tuple[int, int, int, int, int, bytes]] | None: ...
def sweep_faults() -> None: ...
def thread_ids(snapshot: Snapshot, /) -> tuple[int, ...]: ...
def syscall_at(snapshot: Snapshot, /) -> int: ...
def shadow(snapshot: Snapshot, /) -> int: ...
def usable(snapshot: Snapshot, /) -> bool: ...
def end_snapshot(snapshot: Snapshot, /) -> None: ...
