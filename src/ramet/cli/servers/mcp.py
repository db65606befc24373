"""ramet mcp: serve sandboxes as tools for programs that speak the Model Context Protocol."""

from __future__ import annotations

import argparse
import math
import os

from ramet.cli.network_options import add_network_options, chosen_network
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, chosen_url
from ramet.errors import InvalidArgument, RametError

_HOST = "127.0.0.1"
_PORT = 7090

_EXAMPLES = """\
examples:
  ramet mcp                                   for a desktop client, which starts it: see docs/mcp.md
  claude mcp add ramet -- ramet mcp           in Claude Code
  ramet mcp --template python-datasci         with numpy, pandas and matplotlib already imported
  ramet mcp --url http://127.0.0.1:7070       sandboxes of a server that `ramet serve` runs
  ramet mcp --network pypi.example            the sandboxes may reach this host, and nothing else
  export API_KEY=...; ramet mcp --network api.example --secret API_KEY@api.example
  ramet mcp --http                            on http://127.0.0.1:7090/mcp, for several clients
  export MCP_KEY=...; ramet mcp --http --host 0.0.0.0 --api-key-env MCP_KEY
                                              for other machines (put a proxy with TLS in front)

Each client has sandboxes of its own, which end with its session: over stdio when it closes the input, over HTTP when
it ends it or after the idle timeout.

exit code: 0 after the client has left, 1 if it could not start.
"""


def add_command(commands: Commands) -> None:
    parser = new_command(
        commands, "mcp", "serve sandboxes over MCP, to Claude Desktop, editors and others", __doc__, _EXAMPLES
    )
    add_server_option(parser, "sandboxes of this command")
    parser.add_argument("--template", default="default", help="template of the sandboxes (default: %(default)s)")
    parser.add_argument("--memory-mib", type=int, metavar="N", help="memory limit of each sandbox, in MiB")
    add_network_options(parser, "the sandboxes")
    parser.add_argument(
        "--http", action="store_true", help="serve streamable HTTP instead of standard input and output"
    )
    parser.add_argument("--host", default=_HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=_PORT, help="port to listen on; 0 chooses a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key-env",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable with a key that HTTP clients must send as bearer token; may be repeated",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name by which clients reach the server, such as that of a proxy; may be repeated",
    )
    parser.add_argument(
        "--idle-timeout",
        type=float,
        default=1800,
        metavar="SECONDS",
        help="over HTTP, end a session that is unused for this long (default: %(default)g)",
    )
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    _check(chosen)  # before the import, which takes a second
    keys = _keys(chosen.api_key_env)
    try:
        from ramet.doors.mcp.http import HttpSettings, serve_http
        from ramet.doors.mcp.sessions import SandboxSettings
        from ramet.doors.mcp.stdio import serve_stdio
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "pydantic", "anyio"):
            raise
        raise RametError(
            "this command needs the package mcp, 2.3 or newer", hint="pip install '.[mcp]', in a checkout of Ramet"
        ) from error
    network, secrets = chosen_network(chosen)
    sandboxes = SandboxSettings(
        chosen.template, chosen.memory_mib, chosen_url(chosen), chosen.idle_timeout, network, secrets
    )
    if not chosen.http:
        serve_stdio(sandboxes)
        return 0
    settings = HttpSettings(chosen.host, chosen.port, keys, tuple(chosen.allow_host), chosen.idle_timeout)
    serve_http(settings, sandboxes, lambda url: print(f"Ramet serves MCP at {url}", flush=True))
    return 0


def _check(chosen: argparse.Namespace) -> None:
    if not 0 < chosen.idle_timeout < math.inf:
        raise InvalidArgument(f"--idle-timeout must be more than 0 seconds, got {chosen.idle_timeout:g}")
    if not 0 <= chosen.port <= 65535:
        raise InvalidArgument(f"--port must be from 0 to 65535, got {chosen.port}")
    meant_for_http = (chosen.host, chosen.port) != (_HOST, _PORT) or chosen.api_key_env or chosen.allow_host
    if meant_for_http and not chosen.http:
        raise InvalidArgument("--host, --port, --api-key-env and --allow-host are for HTTP only", hint="add --http")


def _keys(names: list[str]) -> tuple[str, ...]:
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise InvalidArgument(f"the environment variable {missing[0]} of --api-key-env is not set, or is empty")
    return tuple(os.environ[name] for name in names)
