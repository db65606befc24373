"""ramet gateway: serve Claude's code execution and programmatic tool calling to clients of the Messages API."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from urllib.parse import urlsplit

from ramet.cli.network_options import add_network_options, chosen_network
from ramet.cli.output import show_progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import chosen_url
from ramet.cli.servers.options import add_listening_options, add_log_option, announce, count
from ramet.errors import InvalidArgument, RametError
from ramet.web.listener import address_of, is_loopback, listen, reachable, url_of
from ramet.web.request_log import Log
from ramet.web.state_folder import state_folder

_PORT = 7080
# Module names, and the packages that provide them.
_NEEDED = {"httpx": "httpx", "multipart": "python-multipart"}

_EXAMPLES = """\
examples:
  ramet gateway --upstream https://api.anthropic.com          clients bring their own keys, which are passed on
  ramet gateway --upstream http://127.0.0.1:8000              a model of your own: vLLM, llama.cpp, Ollama, LiteLLM
  ramet gateway --upstream https://api.anthropic.com --upstream-key-env ANTHROPIC_API_KEY
                                                              one key for all clients of this machine
  ramet gateway --upstream http://127.0.0.1:8000 --network open
                                                              code may reach every public host; without it, nothing
  GATEWAY_KEYS=key1,key2 ramet gateway --upstream http://127.0.0.1:8000 --api-key-env GATEWAY_KEYS --host 0.0.0.0
                                                              for other machines (put a proxy with TLS in front)

Clients set their base URL to the gateway's address and use the tool code_execution_20260120, or 20250522, 20250825 or
20260521, as with the original. SIGTERM or Ctrl-C: no new requests, running ones get some seconds; a second one hurries.

exit code: 0 after a graceful stop, 1 if it could not start.
"""


def add_command(commands: Commands) -> None:
    parser = new_command(
        commands, "gateway", "serve the Messages API with code execution in sandboxes", __doc__, _EXAMPLES
    )
    parser.add_argument(
        "--upstream", required=True, metavar="URL", help="URL of the model's server, which speaks the Messages API"
    )
    parser.add_argument(
        "--upstream-key-env",
        metavar="NAME",
        help="environment variable with the key for the upstream (default: pass on each client's own key)",
    )
    parser.add_argument(
        "--upstream-stall-seconds",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="give up a stream of the upstream that is silent for this long (default: %(default)g)",
    )
    add_listening_options(parser, "127.0.0.1", _PORT)
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="environment variable with the keys that clients need, separated by commas; they are not passed on "
        "(default: any key is accepted, on a loopback address only)",
    )
    # There is no option for the key, because every user of the machine can read command lines.
    shown = "Ramet server that has the sandboxes; its key in RAMET_API_KEY (default: $RAMET_URL, or its own sandboxes)"
    parser.add_argument("--url", help=shown)
    parser.add_argument(
        "--template", default="default", metavar="NAME", help="template of the sandboxes (default: %(default)s)"
    )
    parser.add_argument(
        "--memory-mib", type=count, metavar="N", help="memory limit of each sandbox, in MiB (default: the template's)"
    )
    add_network_options(parser, "the sandboxes")
    numbers: tuple[tuple[str, float, str], ...] = (
        (
            "--container-idle-seconds",
            300,
            "put a container to sleep that is unused for this long, until it is used again",
        ),
        ("--container-keep-seconds", 2592000, "delete a container that is unused for this long"),
        ("--tool-seconds", 270, "how long code waits for the result of a client's tool"),
        ("--cell-seconds", 90, "how long code may run, not counting such waits"),
    )
    for option, default, what in numbers:
        shown = f"{what} (default: {default:.12g})"
        parser.add_argument(option, type=_seconds, default=float(default), metavar="SECONDS", help=shown)
    parser.add_argument(
        "--files",
        metavar="DIR",
        help="folder for uploads, files that code made and records of containers (default: in ~/.local/state/ramet)",
    )
    add_log_option(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    _check_installed()
    # Imported only now: without the extra these modules are missing.
    from ramet.doors.gateway.containers.settings import ContainerSettings
    from ramet.doors.gateway.running.cell_run import CallLimits
    from ramet.doors.gateway.serving import serve
    from ramet.doors.gateway.settings import GatewaySettings
    from ramet.doors.gateway.upstream.client import base_url

    settings = GatewaySettings(
        upstream=base_url(chosen.upstream),
        upstream_key=_upstream_key(chosen.upstream_key_env),
        keys=_keys(chosen.api_key_env),
        stall_seconds=chosen.upstream_stall_seconds,
    )
    network, secrets = chosen_network(chosen)
    containers = ContainerSettings(
        template=chosen.template,
        memory_mib=chosen.memory_mib,
        url=chosen_url(chosen),
        network=network,
        secrets=secrets,
        calls=CallLimits(cell_seconds=chosen.cell_seconds, call_seconds=chosen.tool_seconds),
        container_idle_seconds=chosen.container_idle_seconds,
        container_keep_seconds=chosen.container_keep_seconds,
    )
    folder = Path(chosen.files) if chosen.files else state_folder(None) / "gateway-files"
    listener = listen(chosen.host, chosen.port)
    with listener:
        host, port = address_of(listener)
        if not settings.keys and not is_loopback(host):
            raise InvalidArgument(
                f"host {host} can be reached from other machines, and without keys anybody there could run code",
                hint="put keys into a variable and name it: "
                "GATEWAY_KEYS=$(openssl rand -hex 24) ramet gateway --api-key-env GATEWAY_KEYS ...",
                details={"argument": "host"},
            )
        here = url_of(reachable(host), port)
        log = Log(chosen.log_format)
        show_progress("starting a first sandbox ...")
        serve(
            listener,
            settings,
            containers,
            folder,
            log,
            lambda: _announce(here, settings.upstream, bool(settings.keys)),
        )
    return 0


def _announce(here: str, upstream: str, keys: bool) -> None:
    """Print how to reach it."""
    show_progress("")
    key = "one of the gateway's keys" if keys else "your key"
    lines = [
        f"Ramet's gateway serves {here}",
        "",
        f"  upstream  {urlsplit(upstream)._replace(netloc=urlsplit(upstream).netloc.rpartition('@')[2]).geturl()}",
        f"  keys      {'needed: those that it was started with' if keys else 'any: only this machine can connect'}",
        "  Python",
        f'    client = anthropic.Anthropic(base_url="{here}", api_key="{key}")',
        '    tools = [{"type": "code_execution_20260120", "name": "code_execution"}]',
        "    client.messages.create(model=..., max_tokens=4096, tools=tools, messages=[...])",
        "",
    ]
    announce(lines)


def _check_installed() -> None:
    missing = [package for module, package in _NEEDED.items() if not _is_there(module)]
    if missing:
        raise RametError(
            f"the gateway needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint="pip install '.[gateway]', in a checkout of Ramet",
        )


def _is_there(module: str) -> bool:
    # python-multipart has two import names, the older of which may belong to another package.
    names = (module, f"python_{module}") if module == "multipart" else (module,)
    return any(importlib.util.find_spec(name) is not None for name in names)


def _upstream_key(name: str | None) -> str | None:
    return None if name is None else _variable("upstream-key-env", name)


def _keys(name: str | None) -> tuple[str, ...]:
    if name is None:
        return ()
    keys = tuple(key.strip() for key in _variable("api-key-env", name).split(",") if key.strip())
    if not keys:
        raise InvalidArgument(
            f"the environment variable {name} of --api-key-env holds no key", details={"argument": "api-key-env"}
        )
    return keys


def _variable(option: str, name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise InvalidArgument(
            f"the environment variable {name} of --{option} is not set, or is empty",
            hint=f"export {name}=KEY",
            details={"argument": option},
        )
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10**9:
        raise argparse.ArgumentTypeError(f"must be more than 0 seconds, got {text}")
    return value
