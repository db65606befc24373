"""The state of an image from elsewhere: its recipes, checked, and all else as the importer says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.errors import ProtocolError
from ramet.freezing.images.manifest import FILLED, PAGES, ImageRefused, Manifest
from ramet.freezing.images.moving import recipe_checks
from ramet.freezing.images.moving.file_checks import check_trees
from ramet.freezing.images.moving.saved_state import SavedState, read_state
from ramet.freezing.images.moving.values import demand
from ramet.protocol import fields
from ramet.protocol.import_terms import ImportTerms
from ramet.protocol.values.specs import Limits, SandboxSpec

_CELLS_AT_MOST = 1 << 40
_VARIABLES_AT_MOST, _VARIABLE_BYTES = 1000, 64 << 10
_SLACK_BYTES = 1 << 30


def foreign_state(data: bytes, manifest: Manifest, terms: ImportTerms) -> bytes:
    """The state that the store keeps. Raises ImageRefused for what no sandbox can have been."""
    found = read_state(data, None)
    check_state(found, manifest, terms.limits)
    return SavedState(
        name=terms.name,
        about=_about(found.about, manifest, terms),
        files=found.files,
        process=found.process,
        descriptors=found.descriptors,
        maps=found.maps,
        thread_ids=found.thread_ids,
        limits=terms.limits,
        copy_seconds=0.0,
        mounts=(),
        lineage=found.lineage,
        kept_pid=found.kept_pid,
    ).encode()


def check_state(found: SavedState, manifest: Manifest, limits: Limits) -> SavedState:
    """The same, for a pour. Raises ImageRefused."""
    children = [pid for pid, _ in found.process.children]
    recipe_checks.check_ids(found.thread_ids, found.lineage, found.kept_pid, children)
    recipe_checks.check_process(found.process, found.thread_ids)
    descriptors = recipe_checks.check_descriptors(found.descriptors)
    recipe_checks.check_maps(found.maps, manifest)
    recipe_checks.check_compiles(descriptors, found.maps, children)
    check_trees(found.files, limits)
    mapped = [each for each in manifest.segments if each.kind in (PAGES, FILLED)]
    demand(
        sum(each.end - each.start for each in mapped) <= limits.memory_bytes + _SLACK_BYTES,
        f"more memory than {limits.memory_bytes} bytes, which its limit is",
    )
    return found._replace(descriptors=descriptors)


def _about(found: Mapping[str, Any], manifest: Manifest, terms: ImportTerms) -> dict[str, object]:
    """Reduce the engine's record of a sandbox to its environment, which its memory has too, and its cell count."""
    try:
        given = fields.text_mapping(fields.mapping(found, "spec"), "environment")
        cells, had_tools = fields.natural(found, "cells"), fields.flag(found, "had_tools")
        guest, keep_pid = fields.text(found, "guest"), fields.flag(found, "keep_pid")
        commands = fields.optional_text(found, "commands")
    except ProtocolError as error:
        raise ImageRefused(f"the state of the image cannot be read: {error}") from error
    size = sum(len(name) + len(value) for name, value in given.items())
    demand(len(given) <= _VARIABLES_AT_MOST and size <= _VARIABLE_BYTES, "its environment")
    demand(cells <= _CELLS_AT_MOST and len(guest) <= 64, "its cells")
    demand(commands is None or (commands.startswith("/") and len(commands) < 256), "its commands")
    spec = SandboxSpec(manifest.template, terms.limits, (), tuple(given.items()), owner=terms.owner)
    return {
        "spec": spec.header(),
        "cells": cells,
        "spills": 0,
        "spilled_bytes": 0,
        "had_tools": had_tools,
        "variables": {},
        "commands": commands,
        "keep_pid": keep_pid,
        "guest": guest,
    }
