"""The numbers the engine works with, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.protocol.specs import Interpreter

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True)
class Settings:
    """A test may ask for other ones; a user of the engine never needs to."""

    # An interrupt is SIGINT at once, then these waits before SIGINT again, the hard interrupt, and the kill.
    interrupt_again_seconds: float = 1.0
    hard_interrupt_seconds: float = 1.0
    kill_seconds: float = 2.0

    output_bytes: int = 10 * _MIB  # kept of each stream of a cell
    background_bytes: int = 64 * _KIB  # kept of what is printed between cells
    rich_bytes: int = 64 * _MIB  # kept of all rich results of a cell
    rich_count: int = 1000
    # What a guest says besides output has to be decoded by the one thread that serves all sandboxes: so many bytes of
    # headers at once, and so many a second after that. A guest that says more waits in its own write.
    guest_header_bytes: int = 1 * _MIB
    guest_header_bytes_per_second: int = 1 * _MIB
    # Of one stream of a cell, in a file of the sandbox; all such files together have at most the memory limit of it.
    spill_bytes: int = 256 * _MIB
    spill_pending_bytes: int = 1 * _MIB  # waiting for the worker thread before the pipe is left alone

    # A short cell ends before its output needs reading: the pipes are looked at only after this time, or at its end.
    # Each wake-up that is saved is worth some 20 microseconds of a warm cell.
    quiet_seconds: float = 0.002

    waiting_cells: int = 1000
    # A cell waits so long for one that its caller sent before it and that has not come yet.
    early_seconds: float = 2.0
    stream_high_bytes: int = 256 * _KIB  # unsent to a client: stop reading from the sandbox
    stream_low_bytes: int = 64 * _KIB  # go on reading
    upload_pending_bytes: int = 1 * _MIB
    configure_seconds: float = 10.0
    # Names of a sandbox for a diff: the guest keeps to a time itself, is interrupted when it does not, then given up.
    names_seconds: float = 2.0
    names_interrupt_seconds: float = 3.0
    names_at_most_seconds: float = 12.0
    # A value that is asked for by its name: so long until what makes it is interrupted, and then until it is given up.
    value_seconds: float = 60.0
    value_interrupt_seconds: float = 5.0
    # File calls on a body that was replaced may go on for so long before it is closed.
    retire_seconds: float = 60.0
    snapshots: int = 1000
    snapshots_of_an_owner: int = 200  # where there are several owners, one must not take the room of all
    # Tool calls of a sandbox
    tool_links: int = 64  # connections to its tool socket
    all_tool_links: int = 2048  # to those of all sandboxes: each costs a descriptor. Beyond, a sandbox has only a few
    few_tool_links: int = 4
    tool_arguments_bytes: int = 32 * _MIB  # of large calls that are coming in; one is let in in any case
    # The proxy of sandboxes that have a network
    proxy_idle_seconds: float = 10.0  # after nobody needs it, until it ends
    proxy_again_seconds: float = 0.2  # longer with each time that it died soon, until it is started again
    proxy_flush_seconds: float = 2.0  # for it to tell what it has seen
    # Packages that sandboxes have installed
    packages_folder: str | None = None  # of the host, where they are kept for others to use; None: in memory
    packages_bytes: int = 8192 * _MIB
    packages_memory_bytes: int = 1024 * _MIB
    install_seconds: float = 900.0
    # The last output of a sandbox
    replay_bytes: int = 1 * _MIB
    replay_pieces: int = 4000
    # Executions that can be fetched by their ids
    streamed_bytes: int = 1 * _MIB  # kept of what one has streamed
    executions: int = 100  # ended ones, kept of a sandbox
    executions_bytes: int = 16 * _MIB  # the same; the newest is kept in any case
    all_executions_bytes: int = 256 * _MIB  # of all sandboxes
    ended_sandboxes: int = 10_000  # of which is known how they ended
    watch_unsent_bytes: int = 8 * _MIB  # news for one who does not read them
    # What was kept of persistent sandboxes
    spaces: int = 1000
    spaces_of_an_owner: int = 100
    keep_seconds: float = 60.0  # for freezing one that ends, and for what it was doing to stop
    # Between the end of the control socket and the news of the REPL's death, before we conclude that it only closed it.
    end_of_control_seconds: float = 0.5
    listed_entries: int = 1_000_000
    # Of an engine that serves others: sandboxes are made from this one, and no folder of the host is mounted.
    interpreter: Interpreter | None = None
    file_threads: int = 4
    # After the last sandbox was closed, until memory that is free is given back to the host.
    trim_seconds: float = 5.0


def interrupt_waits(text: str) -> tuple[float, float, float]:
    """Three numbers with commas between them, as on the engine's command line."""
    again, hard, kill = (float(part) for part in text.split(","))
    return again, hard, kill
