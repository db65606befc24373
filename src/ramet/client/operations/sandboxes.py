"""Operations on whole sandboxes, and questions to the engine: create, extend, info, close, list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ramet.client.operations.steps import Operation, ask, carry_out, check_may_wait
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.frames import encode
from ramet.protocol.network.requests import network_request, secrets_request
from ramet.protocol.network.specs import NetworkSpec, SecretSpec
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.history import MissingCell
from ramet.protocol.values.listing import SandboxRow
from ramet.protocol.values.results import SandboxInfo
from ramet.protocol.values.specs import Lifetime, SandboxSpec, ThawSpec


class Inventory(NamedTuple):
    """Names of the saved templates and ids of the snapshots at an engine."""

    templates: tuple[str, ...]
    snapshots: tuple[str, ...]


class Resumed(NamedTuple):
    """The id of a sandbox that goes on, and the cells that are not part of its state."""

    id: str
    missing: tuple[MissingCell, ...]


def create(spec: SandboxSpec | ThawSpec | SandboxOptions) -> Operation[str]:
    """Make a new sandbox, from a snapshot if the spec is a ThawSpec. Returns its id."""
    kind = calls.THAW if isinstance(spec, ThawSpec) else calls.CREATE
    return ask(encode(kind, spec.header()), lambda header: fields.text(header, "id"))


def extend(sandbox_id: str, timeout_seconds: float | None, idle_timeout_seconds: float | None) -> Operation[None]:
    """Reset the lifetime or the idle timeout of a sandbox, counted from now. None leaves it unchanged."""
    if timeout_seconds is None and idle_timeout_seconds is None:
        raise wrong_argument("timeout_seconds", "timeout_seconds or idle_timeout_seconds must be given")
    checks.check_lifetime(Lifetime(timeout_seconds, idle_timeout_seconds))
    header = {
        "sandbox": sandbox_id,
        "timeout_seconds": timeout_seconds,
        "idle_timeout_seconds": idle_timeout_seconds,
    }
    return carry_out(encode(calls.EXTEND, header))


def close(sandbox_id: str) -> Operation[None]:
    """End a sandbox and all its processes."""
    return carry_out(encode(calls.CLOSE, {"sandbox": sandbox_id}))


def info(sandbox_id: str) -> Operation[SandboxInfo]:
    """Return what a sandbox is and uses."""
    return ask(encode(calls.INFO, {"sandbox": sandbox_id}), SandboxInfo.read)


def hibernate(sandbox_id: str) -> Operation[int]:
    """Write a sandbox to disk, and give up its memory and processes until the next call."""
    check_may_wait(sandbox_id)
    return ask(encode(calls.HIBERNATE, {"sandbox": sandbox_id}), lambda header: fields.natural(header, "size_bytes"))


def resume(sandbox_id: str, network: NetworkSpec | None, secrets: tuple[SecretSpec, ...]) -> Operation[Resumed]:
    """Have a sandbox on disk go on under its id."""
    header = {
        "sandbox": sandbox_id,
        "network": None if network is None else network_request(network),
        "secrets": secrets_request(secrets),
    }
    return ask(encode(calls.REOPEN, header), _read_resumed)


def _read_resumed(header: Mapping[str, object]) -> Resumed:
    missing = [each for each in fields.array(header, "missing") if isinstance(each, dict)]
    cells = tuple(MissingCell(fields.natural(each, "cell_id"), fields.text(each, "code")) for each in missing)
    return Resumed(fields.text(header, "sandbox"), cells)


def kept() -> Operation[list[SandboxRow]]:
    """Return the sandboxes on disk that can be resumed, the oldest first."""
    return ask(encode(calls.KEPT, {}), _read_rows)


def discard(sandbox_id: str) -> Operation[None]:
    """Remove what is kept of a sandbox that has ended."""
    return carry_out(encode(calls.DISCARD, {"space": sandbox_id, "owner": ""}))


def list_sandboxes() -> Operation[list[SandboxRow]]:
    """Return all sandboxes that the caller may see, the oldest first."""
    return ask(encode(calls.SANDBOXES, {}), _read_rows)


def _read_rows(header: Mapping[str, object]) -> list[SandboxRow]:
    rows = [SandboxRow.read(row) for row in fields.array(header, "sandboxes") if isinstance(row, dict)]
    return sorted(rows, key=lambda row: row.created_ms)


def inventory() -> Operation[Inventory]:
    """Return the saved templates and the snapshots that the caller may see."""
    return ask(
        encode(calls.SANDBOXES, {}),
        lambda header: Inventory(fields.texts(header, "templates"), fields.texts(header, "snapshots")),
    )


def facts() -> Operation[dict[str, object]]:
    """Return what the engine reports about its machine and its pools."""
    return ask(encode(calls.FACTS, {}), dict)
