"""Options that the commands which start servers share, and the announcement of one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_listening_options(parser: argparse.ArgumentParser, host: str, port: int) -> None:
    parser.add_argument("--host", default=host, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=_port, default=port, help="port to listen on; 0 chooses a free one (default: %(default)s)"
    )


def add_log_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="format of the log on standard error"
    )


def add_state_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        metavar="DIR",
        help="folder for keys, records and the engine's socket (default: $RAMET_STATE, or ~/.local/state/ramet)",
    )


def count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 2**20:
        raise argparse.ArgumentTypeError(f"must be from 1 to {2**20}, got {value}")
    return value


def announce(lines: Sequence[str]) -> None:
    """Print how to reach a server. Programs wait for the first line."""
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        pass  # the reader is gone, which is no reason to stop


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, got {value}")
    return value
