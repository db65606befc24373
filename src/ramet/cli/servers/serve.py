"""ramet serve: serve sandboxes over HTTP to many programs and machines."""

from __future__ import annotations

import argparse

from ramet.cli.output import show_progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.quantities import memory_mib
from ramet.cli.servers.options import add_listening_options, add_log_option, add_state_option, announce, count
from ramet.doors.http.access.network_bounds import read_bound
from ramet.doors.http.processes.keeper import LINGER_SECONDS
from ramet.doors.http.processes.supervisor import serve
from ramet.doors.http.settings import ServerSettings
from ramet.protocol.network.requests import rule_texts
from ramet.protocol.network.rules import NONE
from ramet.transport import resolving
from ramet.web.listener import reachable, url_of
from ramet.web.state_folder import state_folder

_DEFAULTS = ServerSettings("")

_EXAMPLES = """\
examples:
  ramet serve                                 on http://127.0.0.1:7070, for programs of this machine
  ramet serve --port 0                        on a free port, which is printed
  ramet keys create --name laptop             a key, which other machines need; then:
  ramet serve --host 0.0.0.0                  for other machines (put a proxy with TLS in front)
  ramet serve --log-format json 2>> log       one JSON object per request and event
  ramet serve --max-sandboxes 200 --max-memory 75%    bounds for the machine, all keys together
  ramet serve --network none                  sandboxes reach nothing, whatever keys and requests say
  ramet serve --network open --network 10.0.0.5:5432    every public host, and one private address

SIGTERM or Ctrl-C: no new cells, running ones get the grace period, then everything is closed; a second one hurries.
A server that is killed leaves its sandboxes running; the next `ramet serve` with the same state folder finds them.

exit code: 0 after a graceful stop, 1 if it could not start.
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "serve", "serve sandboxes over HTTP", __doc__, _EXAMPLES)
    add_state_option(parser)
    add_listening_options(parser, _DEFAULTS.host, _DEFAULTS.port)
    parser.add_argument("--require-key", action="store_true", help="require a key on a loopback address too")
    parser.add_argument(
        "--network",
        action="append",
        metavar="none|open|RULE",
        help="rule for the most that any sandbox may reach; may be repeated (default: what its key may reach; every "
        "public host where no key is needed)",
    )
    add_log_option(parser)
    numbers: tuple[tuple[str, float, str], ...] = (
        ("--grace", _DEFAULTS.grace_seconds, "time that running cells get to finish when the server stops"),
        ("--timeout", _DEFAULTS.timeout_seconds, "lifetime of a sandbox that asks for none"),
        ("--idle-timeout", _DEFAULTS.idle_timeout_seconds, "idle timeout of a sandbox that asks for none"),
        ("--linger", LINGER_SECONDS, "how long sandboxes outlive a killed server"),
    )
    for option, default, what in numbers:
        shown = f"{what} (default: {default:g})"
        parser.add_argument(option, type=_seconds, default=default, metavar="SECONDS", help=shown)
    parser.add_argument(
        "--on-idle",
        choices=("end", "hibernate"),
        default=_DEFAULTS.on_idle,
        help="what happens to sandboxes after their idle timeout: they end, or sleep on disk until they are called "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--kept-days",
        type=_days,
        default=_DEFAULTS.kept_days,
        metavar="N",
        help="with --on-idle hibernate, lifetime of a sandbox that asks for none, in days (default: %(default)g)",
    )
    parser.add_argument(
        "--max-connections",
        type=count,
        default=_DEFAULTS.connections,
        metavar="N",
        help="most client connections at once (default: %(default)s)",
    )
    parser.add_argument(
        "--max-body-mib",
        type=count,
        default=_DEFAULTS.code_body_bytes >> 20,
        metavar="N",
        help="largest request that carries code, in MiB (default: %(default)s)",
    )
    parser.add_argument(
        "--max-sandboxes",
        type=count,
        metavar="N",
        help="most sandboxes at once, of all keys together (default: what the keys allow)",
    )
    parser.add_argument(
        "--max-memory",
        type=memory_mib,
        metavar="SIZE",
        help="most memory that all sandboxes together may use, counted by their limits: 64G, 512M, or a share of this "
        "machine's memory, 75%% (default: what the keys allow)",
    )
    parser.add_argument(
        "--audit-log-mib",
        type=_audit_mib,
        default=_DEFAULTS.audit_bytes >> 20,
        metavar="N",
        help="size of the audit log in the state folder, with its older files; 0 writes none (default: %(default)s)",
    )
    # For tests: options of the engine that shorten its waits.
    parser.add_argument("--engine-option", action="append", default=[], help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


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
        on_idle=chosen.on_idle,
        kept_days=chosen.kept_days,
        connections=chosen.max_connections,
        code_body_bytes=chosen.max_body_mib << 20,
        all_sandboxes=chosen.max_sandboxes,
        all_memory_mib=chosen.max_memory,
        audit_bytes=chosen.audit_log_mib << 20,
    )
    return serve(
        settings,
        linger_seconds=chosen.linger,
        engine_options=chosen.engine_option,
        announce=_announce,
        progress=_progress,
    )


def _bound(words: list[str] | None) -> list[str] | None:
    """Return the rules in canonical form, after checking them."""
    return None if words is None else rule_texts(read_bound(words))


def _announce(settings: ServerSettings) -> None:
    """Print how to reach it."""
    here = url_of(reachable(settings.host), settings.port)
    key = settings.require_key or not settings.loopback
    header = ' -H "Authorization: Bearer $RAMET_API_KEY"' if key else ""
    lines = [
        f"Ramet serves {url_of(settings.host, settings.port)}",
        "",
        f"  state    {settings.state}",
        f"  keys     {_about_keys(settings)}",
        f"  network  {_about_network(settings)}",
        f"  bounds   {_about_bounds(settings)}",
        f"  curl     curl -s{header} -X POST {here}/v1/sandboxes -d '{{}}'",
        f"  Python   Sandbox(url={here!r}), or set RAMET_URL={here}",
        f"  browser  {here}/docs",
        "",
    ]
    announce(lines)


def _about_keys(settings: ServerSettings) -> str:
    if settings.require_key or not settings.loopback:
        return "required: clients set RAMET_API_KEY; ramet keys create --name NAME makes a key"
    return "not required, because only this machine can connect; --require-key requires one"


def _about_network(settings: ServerSettings) -> str:
    if settings.network is not None:
        return f"sandboxes reach at most: {' '.join(settings.network) or NONE}"
    if settings.require_key or not settings.loopback:
        return "sandboxes that ask for a network get what their key allows (ramet keys create --network)"
    return "sandboxes that ask for a network may reach every public host; --network none forbids it"


def _about_bounds(settings: ServerSettings) -> str:
    sandboxes, memory = settings.all_sandboxes, settings.all_memory_mib
    told = [f"{sandboxes} sandboxes"] if sandboxes is not None else []
    told += [f"{memory} MiB of memory"] if memory is not None else []
    if told:
        unasked = resolving.default_memory_mib()
        bounds = f"at most {' and '.join(told)}, of all keys together"
        if memory is not None and memory < unasked:
            return f"{bounds}; a sandbox gets {unasked} MiB unless it asks, so all must ask for less with memory_mib"
        return bounds
    return "none but those of the keys; --max-sandboxes and --max-memory bound all together"


def _progress(text: str) -> None:
    show_progress(f"{text} ..." if text else "")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 10**9:
        raise argparse.ArgumentTypeError(f"must be at least 0 seconds, got {text}")
    return value


def _days(text: str) -> float:
    value = float(text)
    if not 0 < value <= 366:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most 366 days, got {text}")
    return value


def _audit_mib(text: str) -> int:
    return 0 if text == "0" else count(text)
