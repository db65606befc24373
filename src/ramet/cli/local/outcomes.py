"""How a command that runs code shows its output and ends: exit codes of coreutils' `timeout`, and signals."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from ramet.cli.local.output_folder import OutputFolder, tell_of_plots
from ramet.cli.output import print_error, print_note, shown
from ramet.errors import RametError
from ramet.protocol.values.results import ClearEvent, Event, ExitEvent, OutputEvent, Result, ResultEvent

_TIMED_OUT = 124
_FAILED = 125
_INTERRUPTED = 130
_TERMINATED = 128 + signal.SIGTERM


def ended_as_a_command(work: Callable[[], int], chosen: argparse.Namespace) -> int:
    """Do the work of a command. Return its exit code, or that of the way it ended."""
    # Makes SIGTERM raise SystemExit, so that `with` closes the sandbox of a server, or interrupts its cell, also then.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        return work()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except RametError as error:
        print_error(error, chosen)
        return _FAILED
    finally:
        signal.signal(signal.SIGTERM, before)


def show_events(events: Iterable[Event], output: OutputFolder | None = None, values: bool = True) -> Result:
    """Show what code prints and displays, as it arrives; without ``values``, not its last value."""
    for event in events:
        if isinstance(event, OutputEvent):
            write(sys.stdout if event.type == "stdout" else sys.stderr, event.data)
        elif isinstance(event, ResultEvent):
            if output is None:
                tell_of_plots(event.result)
            else:
                output.save_plot(event.result)
            if event.result.what == "display" or values:
                write(sys.stdout, f"{event.result.text}\n" if event.result.text is not None else "")
        elif isinstance(event, ClearEvent):
            clear_line()
        elif isinstance(event, ExitEvent):
            return event.result
    raise AssertionError("a stream of events ends with an exit")


def exit_code(result: Result) -> int:
    """Return 124 after a timeout, as `timeout` of the coreutils does, otherwise the code's own."""
    return _TIMED_OUT if result.cause == "timeout" else result.exit_code


def explain(result: Result, timeout_seconds: float | None) -> None:
    """Print what the exit code alone does not say."""
    if result.error is not None and "ramet_guest.processes.scripts" in result.error.message:
        print_note("ramet: the server runs another version of Ramet, which cannot run scripts; restart it")
    if result.cause == "timeout":
        after = "" if timeout_seconds is None else f" after {timeout_seconds:g} s"
        place = result.error.message if result.error is not None and result.error.name == "KeyboardInterrupt" else ""
        print_note(f"ramet: timed out{after}{f', {shown(place)}' if place else ''}")


def clear_line() -> None:
    """Do at a terminal what `clear_output()` asks for; only the last line can be removed."""
    if sys.stdout.isatty():
        write(sys.stdout, "\r\x1b[2K")


def write(stream: TextIO, text: str) -> None:
    """Write at once and completely, whatever the terminal's encoding is."""
    if text:
        stream.buffer.write(text.encode(stream.encoding or "utf-8", "replace"))
        stream.buffer.flush()
