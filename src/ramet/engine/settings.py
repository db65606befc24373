"""The limits and waits of the engine, in one place."""

from __future__ import annotations

from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Interpreter

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits and waits of an engine. Tests change them; users never need to."""

    # An interrupt is SIGINT at once, then these waits before SIGINT again, the hard interrupt, and the kill.
    interrupt_again_seconds: float = 1.0
    hard_interrupt_seconds: float = 1.0
    kill_seconds: float = 2.0

    output_bytes: int = 10 * _MIB  # kept of each stream of a cell
    background_bytes: int = 64 * _KIB  # kept of the output between cells
    rich_bytes: int = 64 * _MIB  # kept of all rich results of a cell
    rich_count: int = 1000
    # The one thread that serves all sandboxes decodes the frames of each guest. A guest may send this many bytes of
    # headers at once, and this many a second after that; beyond, it blocks in its own write.
    guest_header_bytes: int = 1 * _MIB
    guest_header_bytes_per_second: int = 1 * _MIB
    # The largest file with one stream of a cell. All such files of a sandbox together have at most its memory limit.
    spill_bytes: int = 256 * _MIB
    spill_pending_bytes: int = 1 * _MIB  # more than this waits for the worker thread: stop reading the pipe

    # A short cell ends before its output needs reading: the pipes are read only after this time, or at its end. Each
    # wake-up that is saved is worth some 20 microseconds of a warm cell.
    quiet_seconds: float = 0.002

    waiting_cells: int = 1000
    # How long a cell waits for an earlier one of its caller that has not arrived yet.
    early_seconds: float = 2.0
    stream_high_bytes: int = 256 * _KIB  # unsent to a client: above this, stop reading from the sandbox
    stream_low_bytes: int = 64 * _KIB  # at or below this, read again
    upload_pending_bytes: int = 1 * _MIB
    configure_seconds: float = 10.0
    # The names of a sandbox for a diff: the guest limits its own time, is interrupted if it does not, then given up.
    names_seconds: float = 2.0
    names_interrupt_seconds: float = 3.0
    names_at_most_seconds: float = 12.0
    # A value by its name: the time until the code that makes it is interrupted, then until it is given up.
    value_seconds: float = 60.0
    value_interrupt_seconds: float = 5.0
    # How long file calls on a replaced body may go on before the body is closed.
    retire_seconds: float = 60.0
    snapshots: int = 1000
    snapshots_of_an_owner: int = 200  # so that one owner cannot take all the room
    # Points: states of a sandbox that are kept for undo, rewind and recovery
    automatic_points: bool = True  # False: only sandboxes that ask for a number of points have any
    point_idle_seconds: float = 0.1  # without a next cell, after which the state is kept
    point_outside_seconds: float = 1.0  # the same after a change from outside, as of a file
    points_before_cells: int = 3  # a new sandbox's, taken although the next cell waits for it: short scripts can undo
    point_share: float = 0.03  # of the time, that a sandbox may lose to points while its cells wait
    point_loop_seconds: float = 1.0  # the longest wait for the answer of a REPL before Python 3.12
    points: int = 1000  # of all sandboxes; those not used for longest give theirs up
    points_automatic: int = 256  # the same for sandboxes that did not ask for a number
    history_bytes: int | None = None  # memory of all points; None: 5 % of the machine's
    history_disk_bytes: int = 4096 * _MIB  # of all points on disk; 0: none is written there
    points_on_disk: int = 500
    points_on_disk_of_a_sandbox: int = 100
    # The writer rests this many times as long as a write took, unless a sandbox has asked for a number of points.
    point_write_rest: float = 3.0
    # A sandbox with more living ancestors than this gets a memory of its own when it has been idle for a moment
    ancestors: int = 16
    flatten_idle_seconds: float = 1.0
    # Tool calls of a sandbox
    tool_links: int = 64  # connections to its tool socket
    all_tool_links: int = 2048  # of all sandboxes: each costs a descriptor. Beyond this, a sandbox gets only a few
    few_tool_links: int = 4
    tool_arguments_bytes: int = 32 * _MIB  # of large calls that are being received; a single one may have more
    # The proxy of sandboxes that have a network
    proxy_idle_seconds: float = 10.0  # it ends this long after its last sandbox
    proxy_again_seconds: float = 0.2  # delay of a restart, times the number of early deaths in a row
    proxy_flush_seconds: float = 2.0  # the longest wait for its answer to a flush
    # Packages that sandboxes have installed
    packages_folder: str | None = None  # a folder of the host for the store; None: the store is in memory
    packages_bytes: int = 8192 * _MIB
    packages_memory_bytes: int = 1024 * _MIB
    install_seconds: float = 900.0
    # The last output of a sandbox
    replay_bytes: int = 1 * _MIB
    replay_pieces: int = 4000
    # Executions that can be fetched by their ids
    streamed_bytes: int = 1 * _MIB  # kept of the stream of one execution
    executions: int = 100  # ended ones kept of a sandbox
    executions_bytes: int = 16 * _MIB  # kept of a sandbox; the newest one may have more
    all_executions_bytes: int = 256 * _MIB  # kept of all sandboxes
    ended_sandboxes: int = 10_000  # sandboxes whose cause of end is remembered
    watch_unsent_bytes: int = 8 * _MIB  # events for a subscriber that does not read; then it is disconnected
    # Saved states of persistent sandboxes
    spaces: int = 1000
    spaces_of_an_owner: int = 100
    keep_seconds: float = 60.0  # for freezing a sandbox that ends, including the end of its running cell
    # Wait for the report of the REPL's death after the end of its control socket. Without one, it has only closed it.
    end_of_control_seconds: float = 0.5
    listed_entries: int = 1_000_000
    # Set in the engine of a server: all sandboxes use this interpreter, and no folder of the host is mounted.
    interpreter: Interpreter | None = None
    server: str = ""  # its name: sandboxes on disk that an earlier engine of this server had are there again
    file_threads: int = 4
    # Free memory goes back to the host this long after the last sandbox was closed.
    trim_seconds: float = 5.0


def interrupt_waits(text: str) -> tuple[float, float, float]:
    """Read three numbers with commas between them, from the engine's command line."""
    again, hard, kill = (float(part) for part in text.split(","))
    return again, hard, kill
