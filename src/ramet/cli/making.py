"""Options about the sandboxes that commands make: template, memory, environment, host folders."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import NamedTuple

from ramet.cli.networking import add_network_options, chosen_network
from ramet.client.arguments import Mount
from ramet.client.blocking.forks import Snapshot
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import InvalidArgument


class Lifetime(NamedTuple):
    """Of a sandbox at a server, in seconds. None: what the server does by default."""

    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None


def add_sandbox_options(parser: argparse.ArgumentParser, mounts: bool = True) -> None:
    parser.add_argument("--template", metavar="NAME", help="template of a new sandbox (default: default)")
    parser.add_argument("--memory-mib", type=int, metavar="N", help="memory limit of a new sandbox, in MiB")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="variable of a new sandbox; without =VALUE the one of this command. May be given again. Code in the "
        "sandbox sees the value: for keys use --secret",
    )
    if mounts:
        parser.add_argument(
            "--mount",
            action="append",
            default=[],
            metavar="HOST:SANDBOX[:rw]",
            help="show a folder of this machine in a new sandbox, read-only unless :rw follows; not at a server. "
            "May be given again",
        )
    add_network_options(parser)


_DEFAULT_LIFETIME = Lifetime()


def make_sandbox(
    chosen: argparse.Namespace,
    url: str | None,
    lifetime: Lifetime = _DEFAULT_LIFETIME,
    snapshot: Snapshot | None = None,
) -> Sandbox:
    """A new sandbox as the options say. Everything is checked before anything starts."""
    network, secrets = chosen_network(chosen)
    return Sandbox(
        snapshot or chosen.template or "default",
        memory_mib=chosen.memory_mib,
        env=chosen_environment(chosen.env) or None,
        mounts=_mounts(getattr(chosen, "mount", []), url) or None,
        network=network,
        secrets=secrets,
        url="" if url is None else url,
        **lifetime._asdict(),
    )


def check_exists(chosen: argparse.Namespace) -> None:
    """Options for a new sandbox do nothing to one that exists: say so instead of ignoring them."""
    for name in ("template", "memory_mib", "env", "mount", "network", "secret", "secret_in"):
        if getattr(chosen, name, None):
            raise InvalidArgument(
                f"--{name.replace('_', '-')} is for a new sandbox",
                hint="leave out the sandbox's id, or the option",
                details={"argument": name},
            )


def chosen_environment(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            if name not in os.environ:
                raise InvalidArgument(
                    f"--env {name:.100}: there is no such variable in the environment of this command",
                    hint=f"--env {name:.100}=VALUE, or export it first",
                    details={"argument": "env"},
                )
            value = os.environ[name]
        found[name] = value
    return found


def _mounts(given: list[str], url: str | None) -> Mapping[str, Mount]:
    if given and url is not None:
        raise InvalidArgument(
            "--mount shows folders of this machine, which a server cannot",
            hint="copy what is needed: --upload FILE, or ramet cp FOLDER SANDBOX:PATH",
            details={"argument": "mount"},
        )
    return dict(_mount(one) for one in given)


def _mount(text: str) -> tuple[str, Mount]:
    rest, _, mode = text.rpartition(":")
    if mode not in ("rw", "ro"):
        rest, mode = text, "ro"
    # The last colon: a folder of this machine may have some in its name.
    host, _, target = rest.rpartition(":")
    if not host or not target.startswith("/"):
        raise InvalidArgument(
            f"--mount must be HOST:SANDBOX or HOST:SANDBOX:rw, with an absolute path in the sandbox, got {text:.100}",
            hint="--mount ./data:/data",
            details={"argument": "mount"},
        )
    return target, Mount(os.path.expanduser(host), writable=mode == "rw")
