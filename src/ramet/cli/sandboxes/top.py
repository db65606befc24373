"""ramet top: show live what the sandboxes of a server use."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from ramet.cli.output import cut, duration, paint, print_note, size, table
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, server
from ramet.cli.sandbox_ids import short
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import SandboxClosed

_EXAMPLES = """\
examples:
  ramet top                                   until Ctrl-C
  ramet top --once
  ramet top --json                            one JSON array

MEMORY is what the sandbox shares with no other. Where the kernel counts it (control groups), that is of all its
processes, and PEAK and PROCESSES are known; elsewhere it is that of its Python alone.
"""

_TITLES = ("SANDBOX", "STATE", "MEMORY", "PEAK", "LIMIT", "PROCESSES", "AGE", "TEMPLATE")
# Keeps lines within 80 columns.
_TEMPLATE_CHARACTERS = 14
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Use:
    """What a sandbox uses now. None: this host does not measure it."""

    id: str
    state: str
    template: str
    memory_bytes: int | None
    memory_peak_bytes: int | None
    memory_limit_bytes: int
    processes: int | None
    waiting: int
    created_ms: int


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "top", "show what sandboxes use", __doc__, _EXAMPLES)
    add_server_option(parser)
    parser.add_argument("--once", action="store_true", help="print the table once, as when the output is no terminal")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between two updates (default: 2)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array, once")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url:
        if chosen.json:
            print(json.dumps([asdict(use) for use in look(url)], indent=2))
        elif chosen.once or not sys.stdout.isatty():
            uses = look(url)
            print("\n".join(_table(uses)))
        else:
            _live(url, max(chosen.interval, 0.1))
    return 0


def look(url: str) -> list[Use]:
    """Return all sandboxes, the largest first. Leaves out those that end meanwhile."""
    rows = Sandbox.list_all(url=url)
    with ThreadPoolExecutor(_THREADS) as threads:
        uses = [use for use in threads.map(lambda row: _use(url, row.id), rows) if use is not None]
    return sorted(uses, key=lambda use: use.memory_bytes or 0, reverse=True)


def _use(url: str, sandbox_id: str) -> Use | None:
    try:
        info = Sandbox.connect(sandbox_id, url=url).info()
    except SandboxClosed:
        return None
    usage = info.usage
    return Use(
        id=info.id,
        state=info.state,
        template=info.template,
        # Without a control group the kernel reports the REPL only.
        memory_bytes=usage.get("memory_bytes", usage.get("private_bytes")),
        memory_peak_bytes=usage.get("memory_peak_bytes"),
        memory_limit_bytes=info.limits.memory_bytes,
        processes=usage.get("processes"),
        waiting=info.waiting,
        created_ms=info.created_ms,
    )


def _table(uses: Sequence[Use]) -> list[str]:
    ids = [use.id for use in uses]
    return table(_TITLES, [_columns(use, ids) for use in uses])


def _columns(use: Use, ids: list[str]) -> tuple[str, ...]:
    def counted(value: int | None) -> str:
        return "-" if value is None else size(value)

    return (
        short(use.id, ids),
        f"{use.state}+{use.waiting}" if use.waiting else use.state,
        counted(use.memory_bytes),
        counted(use.memory_peak_bytes),
        size(use.memory_limit_bytes),
        "-" if use.processes is None else str(use.processes),
        duration(time.time() - use.created_ms / 1000),
        cut(use.template, _TEMPLATE_CHARACTERS),
    )


def _live(url: str, interval_seconds: float) -> None:
    """Draw on the terminal's alternate screen, which leaves nothing behind."""
    sys.stdout.write("\033[?1049h\033[?25l")
    try:
        while True:
            _draw(url, look(url))
            time.sleep(interval_seconds)
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write("\033[?25h\033[?1049l")
        sys.stdout.flush()
    print_note("")


def _draw(url: str, uses: Sequence[Use]) -> None:
    width, height = os.get_terminal_size(sys.stdout.fileno())
    memory = sum(use.memory_bytes or 0 for use in uses)
    running = sum(use.state == "running" for use in uses)
    summary = f"{url}   {len(uses)} sandboxes, {running} running, {size(memory)}   {time.strftime('%H:%M:%S')}"
    head, *rest = _table(uses)
    lines = [summary[:width], "", paint(head[:width], "bold", sys.stdout), *(line[:width] for line in rest)]
    sys.stdout.write("\033[H" + "\n".join(f"{line}\033[K" for line in lines[: height - 1]) + "\033[J")
    sys.stdout.flush()
