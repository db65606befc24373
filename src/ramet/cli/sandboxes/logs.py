"""ramet logs: show what the cells of a sandbox printed last, at most a mebibyte of it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

from ramet.cli.output import paint
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import add_sandbox_argument
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import SandboxClosed
from ramet.protocol.values.replays import ReplayEvent

_EXAMPLES = """\
examples:
  ramet logs sbx_0f3a
  ramet logs sbx_0f3a --follow                until Ctrl-C, or until the sandbox ends
  ramet logs sbx_0f3a --json | jq -r 'select(.type == "stderr") | .data'
"""

_FOLLOW_SECONDS = 0.5


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "logs", "show what a sandbox printed", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what it prints from now on")
    parser.add_argument(
        "--timestamps", action="store_true", help="show when each piece was printed, and how cells ended"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url:
        for event in _events(find(url, chosen.sandbox), chosen.follow):
            _print(event, chosen)
    return 0


def _events(sandbox: Sandbox, follow: bool) -> Iterator[ReplayEvent]:
    """Yield all events. To follow, ask again and again: new events come after the last one seen."""
    seen: list[ReplayEvent] = []
    while True:
        try:
            now = sandbox.replay()
        except SandboxClosed:
            if follow:
                return  # it existed when we began, so it has ended
            raise
        yield from now[_known(seen, now) :]
        if not follow:
            return
        seen = now
        time.sleep(_FOLLOW_SECONDS)


def _known(seen: list[ReplayEvent], now: list[ReplayEvent]) -> int:
    """Return how many of `now` have been seen.

    Old ones fall out at the front of the ring, so the two may overlap anywhere.
    """
    for dropped in range(len(seen)):
        rest = seen[dropped:]
        if now[: len(rest)] == rest:
            return len(rest)
    return 0


def _print(event: ReplayEvent, chosen: argparse.Namespace) -> None:
    if chosen.json:
        told: dict[str, object] = {"type": event.type, "time_seconds": event.time_seconds}
        told |= {"execution": event.execution} if event.execution else {}
        told |= {"code": event.code} if event.type == "exit" else {"data": event.data}
        print(json.dumps(told), flush=True)
        return
    stream = sys.stderr if event.type == "stderr" else sys.stdout
    if chosen.timestamps:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time_seconds))
        text = f"exit code {event.code}\n" if event.type == "exit" else event.data
        for line in text.splitlines(keepends=True):
            stream.write(f"{paint(f'{when} {event.type:<6}', 'dim', stream)} {line.rstrip(chr(10))}\n")
    elif event.type != "exit":
        stream.write(event.data)
    stream.flush()
