"""Options about the sandboxes that commands make: template, memory, environment, host folders."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from ramet.cli.described_options import add_option
from ramet.cli.network_options import add_network_options, chosen_network
from ramet.client.arguments import Mount
from ramet.client.blocking.forks import Snapshot
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import InvalidArgument
from ramet.protocol.requests.options import CommandLine, options_of
from ramet.protocol.requests.sandboxes import SandboxOptions


def add_sandbox_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Those that ``SandboxOptions`` describes for this command, and those of the network."""
    known = options_of(SandboxOptions)
    for name, option in _offered().items():
        if command in option.commands:
            add_option(parser, name, known[name], option)
    add_network_options(parser)


def make_sandbox(
    chosen: argparse.Namespace,
    url: str | None,
    snapshot: Snapshot | None = None,
    more: Mapping[str, float] | None = None,
) -> Sandbox:
    """A new sandbox as the options say, with more of them. Everything is checked before anything starts."""
    network, secrets = chosen_network(chosen)
    given: dict[str, Any] = {name: getattr(chosen, name, None) for name in _offered()}
    template = given.pop("template")
    given["persistent"] = bool(given["persistent"])
    given["env"] = chosen_environment(given["env"]) or None
    given["mounts"] = _mounts(given["mounts"] or [], url) or None
    return Sandbox(
        snapshot or template or "default",
        **{**given, **(more or {})},
        network=network,
        secrets=secrets,
        url="" if url is None else url,
    )


def check_exists(chosen: argparse.Namespace) -> None:
    """Options for a new sandbox do nothing to one that exists: say so instead of ignoring them."""
    flags = {name: option.flag for name, option in _offered().items()}
    for name, flag in {**flags, **_NETWORK_FLAGS}.items():
        if getattr(chosen, name, None):
            raise InvalidArgument(
                f"{flag} is for a new sandbox",
                hint="leave out the sandbox's id, or the option",
                details={"argument": flag.removeprefix("--").replace("-", "_")},
            )


_NETWORK_FLAGS = {"network": "--network", "secret": "--secret", "secret_in": "--secret-in"}


def _offered() -> dict[str, CommandLine]:
    """Options of the command line, by the names of the arguments of ``Sandbox``."""
    found = options_of(SandboxOptions).items()
    return {name: option.command_line for name, option in found if option.command_line is not None}


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
