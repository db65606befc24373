"""The C extension. Every function must be called from one and the same thread."""

class Snapshot:
    """Opaque: a capsule."""

class FreezeError(RuntimeError):
    """args: what was tried, and an errno or 0."""

# shadow, its pidfd, REPL, its pidfd, microseconds of the four parts
Thawed = tuple[int, int, int, int, tuple[float, float, float, float]]

def freeze_template(pid: int, control_descriptor: int, seconds: float, /) -> Snapshot: ...
def thaw(
    snapshot: Snapshot,
    pod_init: int,
    pod_root: int,
    main_pid: int,
    cgroups: int,
    limits: tuple[tuple[int, int, int], ...],
    files: tuple[tuple[int, int, int, bytes], ...],
    seconds: float,
    /,
) -> Thawed: ...
def thread_ids(snapshot: Snapshot, /) -> tuple[int, ...]: ...
def usable(snapshot: Snapshot, /) -> bool: ...
def end_template(snapshot: Snapshot, /) -> None: ...
