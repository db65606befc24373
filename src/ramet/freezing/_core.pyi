"""The C extension. Every function must be called from one and the same thread."""

from types import CapsuleType

class FreezeError(RuntimeError):
    """args: what was tried, and an errno or 0."""

def freeze_template(pid: int, control_descriptor: int, seconds: float, /) -> CapsuleType: ...
def thaw(
    snapshot: CapsuleType,
    pod_init: int,
    pod_root: int,
    main_pid: int,
    cgroups: int,
    limits: tuple[tuple[int, int, int], ...],
    files: tuple[tuple[int, int, int, bytes], ...],
    seconds: float,
    /,
) -> tuple[int, int, int, int, tuple[float, float, float, float]]: ...
def thread_ids(snapshot: CapsuleType, /) -> tuple[int, ...]: ...
def end_template(snapshot: CapsuleType, /) -> None: ...
