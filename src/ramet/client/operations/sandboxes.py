"""Operations on whole sandboxes, and questions to the engine: create, extend, info, close, list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ramet.client.operations.steps import Operation, ask, carry_out, check_may_wait
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.frames import encode
from ramet.protocol.values.listing import SandboxRow
from ramet.protocol.values.requests import SandboxOptions
from ramet.protocol.values.results import SandboxInfo
from ramet.protocol.values.specs import Lifetime, SandboxSpec, ThawSpec


class Inventory(NamedTuple):
    """Names of the saved templates and ids of the snapshots at an engine."""

    templates: tuple[str, ...]
    snapshots: tuple[str, ...]


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
