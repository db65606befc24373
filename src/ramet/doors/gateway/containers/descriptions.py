"""Describes a container: its variables, files and last cells."""

from __future__ import annotations

from datetime import UTC

from ramet import AsyncFiles, AsyncSandbox, History, Undone
from ramet.doors.gateway.containers.container import Container
from ramet.doors.gateway.containers.records import CellRecord
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.files.shapes import timestamp
from ramet.doors.gateway.running.outputs import OUTPUTS
from ramet.doors.gateway.running.uploads import INPUTS
from ramet.errors import FileError, RametError

_FOLDERS = ("/root", INPUTS, OUTPUTS)
_FILES = 500
_DEPTH = 8
_NAMES = 500


def container_object(container: Container) -> dict[str, object]:
    """A container as an entry of the list."""
    expires_at = container.expires_at.astimezone(UTC).timestamp()
    pending = container.pending
    return {
        "id": container.id,
        "type": "container",
        "state": container.state,
        "created_at": timestamp(container.created_seconds),
        "last_used_at": timestamp(container.used_seconds),
        "expires_at": timestamp(expires_at),
        "forked_from": container.forked_from,
        "pending_calls": [
            {"id": call.id, "name": call.name, "input": dict(call.input)}
            for call in (() if pending is None else pending.calls)
        ],
    }


async def describe(container: Container, settings: ContainerSettings) -> dict[str, object]:
    """Everything about a container. Variables and files are null while code runs or waits, when nothing can be read."""
    description = container_object(container)
    names: list[dict[str, object]] | None = None
    files: list[dict[str, object]] | None = None
    if container.state == "new":
        names, files = [], []
    else:
        with container.held():
            sandbox = await container.sandbox_between_cells()
            if sandbox is not None:
                names = await _names(sandbox, settings)
                files = await _files(sandbox.files)
    cells = [_cell(record) for record in container.cells]
    return {**description, "names": names, "files": files, "cells": cells}


async def _names(sandbox: AsyncSandbox, settings: ContainerSettings) -> list[dict[str, object]] | None:
    """The difference to an empty sandbox: this runs no code of ours among the variables and leaves no trace."""
    try:
        async with AsyncSandbox(
            settings.template, python=settings.python, url=settings.url, api_key=settings.api_key
        ) as empty:
            diff = await empty.diff(sandbox, paths=["/dev/null"])
    except RametError:
        return None  # no quota for another sandbox, or a value that cannot be compared
    found = [(change.name, change.after) for change in diff.names if change.after is not None]
    return [
        {"name": name, "type": value.type, "value": value.value, "size_bytes": value.size_bytes}
        for name, value in found[:_NAMES]
    ]


async def _files(files: AsyncFiles) -> list[dict[str, object]] | None:
    """Files below the folders that code usually writes to, without hidden ones."""
    found: list[dict[str, object]] = []
    folders = [(folder, 0) for folder in reversed(_FOLDERS)]
    while folders and len(found) < _FILES:
        folder, depth = folders.pop()
        try:
            entries = await files.list(folder)
        except FileError:
            continue  # it does not exist (any more)
        except RametError:
            return None
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.type == "folder":
                if depth < _DEPTH:
                    folders.append((path, depth + 1))
            elif len(found) < _FILES:
                modified_at = timestamp(entry.modified_seconds)
                found.append({"path": path, "size_bytes": entry.size_bytes, "modified_at": modified_at})
    return sorted(found, key=lambda one: str(one["path"]))


def history_object(found: History) -> dict[str, object]:
    """The past of a container: one entry for each call of code execution, the oldest first."""
    return {
        "data": [
            {
                "id": point.id,
                "code": point.code,
                "outcome": point.outcome,
                "kept": point.kept,
                "note": point.note,
            }
            for point in found.points
        ],
        "taking": found.taking,
        "note": found.note,
    }


def undone_object(container_id: str, undone: Undone) -> dict[str, object]:
    """What an undo has done, and what has happened since the state that it led to and stays."""
    return {
        "id": container_id,
        "type": "container_undone",
        "point": undone.point.id,
        "undone_calls": len(undone.cell_ids),
        "tool_calls": list(undone.tool_calls),
        "connections": list(undone.connections),
    }


def _cell(record: CellRecord) -> dict[str, object]:
    ended = "return_code" if isinstance(record.outcome, int) else "error_code"
    return {
        "tool_use_id": record.tool_use_id,
        "name": record.name,
        "code": record.code,
        "began_at": timestamp(record.began_seconds),
        "duration_seconds": round(record.duration_seconds, 3),
        ended: record.outcome,
    }
