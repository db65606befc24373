"""ramet serve: sandboxes for many programs and machines, over HTTP."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ramet.cli.output import show_progress
from ramet.protocol.network_requests import rule_texts
from ramet.protocol.rules import NONE
from ramet.server import listening
from ramet.server.bounds import read_bound
from ramet.server.settings import ServerSettings
from ramet.server.state import state_folder
from ramet.server.supervising import serve
from ramet.transport.keeper import LINGER_SECONDS

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DEFAULTS = ServerSettings("")

_EXAMPLES = """\
examples:
  ramet serve                                 on http://127.0.0.1:7070, for programs of this machine
  ramet serve --port 0                        on a free port, which is printed
  ramet keys create --name laptop             a key, without which nobody else gets in, then:
  ramet serve --host 0.0.0.0                  for other machines (put a proxy with TLS in front)
  ramet serve --log-format json 2>> log       one JSON object per request and event
  ramet serve --network none                  sandboxes reach nothing, whatever keys and requests say
  ramet serve --network open --network 10.0.0.5:5432    all that is public, and one address that is not

SIGTERM or Ctrl-C: no new cells, running ones get the grace period, then everything is closed; a second one hurries.
A server that is killed leaves its sandboxes running; the next `ramet serve` with the same state folder finds them.

exit code: 0 after a graceful stop, 1 when it could not begin.
"""


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve sandboxes over HTTP",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_state_option(parser)
    parser.add_argument("--host", default=_DEFAULTS.host, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=_DEFAULTS.port, help="0: a free one (default: %(default)s)")
    parser.add_argument("--require-key", action="store_true", help="ask for a key also on a loopback address")
    parser.add_argument(
        "--network",
        action="append",
        metavar="none|open|RULE",
        help="the most that any sandbox may reach; repeat for several rules (default: what its key may; all that is "
        "public where no key is needed)",
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="of the log on standard error")
    numbers: tuple[tuple[str, float, str], ...] = (
        ("--grace", _DEFAULTS.grace_seconds, "for running cells when told to stop"),
        ("--timeout", _DEFAULTS.timeout_seconds, "life of a sandbox that asked for none"),
        ("--idle-timeout", _DEFAULTS.idle_timeout_seconds, "a sandbox that asked for none ends after so long unused"),
        ("--linger", LINGER_SECONDS, "sandboxes outlive a killed server by"),
    )
    for option, default, what in numbers:
        shown = f"{what} (default: {default:g})"
        parser.add_argument(option, type=_seconds, default=default, metavar="SECONDS", help=shown)
    parser.add_argument(
        "--max-connections",
        type=_count,
        default=_DEFAULTS.connections,
        metavar="N",
        help="connections of clients at once (default: %(default)s)",
    )
    parser.add_argument(
        "--max-body-mib",
        type=_count,
        default=_DEFAULTS.code_body_bytes >> 20,
        metavar="N",
        help="size of a request that carries code (default: %(default)s)",
    )
    # Of the engine, for tests that want shorter waits.
    parser.add_argument("--engine-option", action="append", default=[], help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def add_state_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        metavar="DIR",
        help="folder of keys, records and the engine's socket (default: $RAMET_STATE, or ~/.local/state/ramet)",
    )


def run(chosen: argparse.Namespace) -> int:
    settings = ServerSettings(
        state=str(state_folder(chosen.state)),
        host=chosen.host,
        port=chosen.port,
        require_key=chosen.require_key,
        network=_bound(chosen.network),
        log_format=chosen.log_format,
        grace_seconds=chosen.grace,
        timeout_seconds=chosen.timeout,
        idle_timeout_seconds=chosen.idle_timeout,
        connections=chosen.max_connections,
        code_body_bytes=chosen.max_body_mib << 20,
    )
    options = ["--linger", str(chosen.linger), "--", *chosen.engine_option]
    return serve(settings, keeper_options=options, announce=_announce, progress=_progress)


def _bound(words: list[str] | None) -> list[str] | None:
    """As it is written best, once it is known to mean something."""
    return None if words is None else rule_texts(read_bound(words))


def _announce(settings: ServerSettings) -> None:
    """How to reach it. The first line is for programs too, which wait for it."""
    here = listening.url(listening.reachable(settings.host), settings.port)
    key = settings.require_key or not settings.loopback
    header = ' -H "Authorization: Bearer $RAMET_API_KEY"' if key else ""
    lines = [
        f"Ramet serves {listening.url(settings.host, settings.port)}",
        "",
        f"  state    {settings.state}",
        f"  keys     {_about_keys(settings)}",
        f"  network  {_about_network(settings)}",
        f"  curl     curl -s{header} -X POST {here}/v1/sandboxes -d '{{}}'",
        f"  Python   Sandbox(url={here!r}), or set RAMET_URL={here}",
        f"  browser  {here}/docs",
        "",
    ]
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        pass  # nobody reads any more; that is no reason to stop


def _about_keys(settings: ServerSettings) -> str:
    if settings.require_key or not settings.loopback:
        return "needed: RAMET_API_KEY in the environment of a client; ramet keys create --name NAME makes one"
    return "not needed, as only this machine can connect; --require-key asks for one"


def _about_network(settings: ServerSettings) -> str:
    if settings.network is not None:
        return f"sandboxes reach at most: {' '.join(settings.network) or NONE}"
    if settings.require_key or not settings.loopback:
        return "sandboxes reach what their key may (ramet keys create --network), and nothing unless they ask for it"
    return "sandboxes without a key reach what is public if they ask for it; --network none forbids it"


def _progress(text: str) -> None:
    show_progress(f"{text} ..." if text else "")


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is not a port: 0 to 65535")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 10**9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds that is zero or more")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 2**20:
        raise argparse.ArgumentTypeError(f"{value} is not a number from 1 to {2**20}")
    return value
