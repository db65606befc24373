"""All that the image of a sandbox has besides memory, threads and files, as JSON and back."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from ramet.freezing.descriptors import OpenDescriptors, SharedMap
from ramet.freezing.images import plain_data
from ramet.freezing.images.manifest import ImageRefused
from ramet.freezing.process_state import ProcessState
from ramet.protocol.values.specs import Limits, MountSpec


class SavedState(NamedTuple):
    name: str  # in the store: an image cannot be passed off as another
    about: dict[str, Any]  # the engine's own
    files: dict[str, Any]  # what `file_trees` wrote
    process: ProcessState
    descriptors: OpenDescriptors
    maps: tuple[SharedMap, ...]
    thread_ids: frozenset[int]
    limits: Limits
    copy_seconds: float
    mounts: tuple[MountSpec, ...]
    lineage: frozenset[int]
    kept_pid: int | None

    def encode(self) -> bytes:
        plain = ("name", "about", "files", "copy_seconds", "kept_pid")
        found = {
            field: value if field in plain else plain_data.encode(value) for field, value in self._asdict().items()
        }
        return json.dumps(found).encode("ascii")


def read_state(data: bytes, name: str | None) -> SavedState:
    """``name``: under which it must have been written; None: any. Raises ImageRefused."""
    try:
        state = json.loads(data)
        found = SavedState(
            name=plain_data.decode(state["name"], str),
            about=state["about"],
            files=state["files"],
            process=plain_data.decode(state["process"], ProcessState),
            descriptors=plain_data.decode(state["descriptors"], OpenDescriptors),
            maps=plain_data.decode(state["maps"], tuple[SharedMap, ...]),
            thread_ids=plain_data.decode(state["thread_ids"], frozenset[int]),
            limits=plain_data.decode(state["limits"], Limits),
            copy_seconds=float(state["copy_seconds"]),
            mounts=plain_data.decode(state["mounts"], tuple[MountSpec, ...]),
            lineage=plain_data.decode(state["lineage"], frozenset[int]),
            kept_pid=plain_data.decode(state["kept_pid"], int | None),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ImageRefused(f"the state of the image cannot be read: {error!r:.80}") from error
    if not isinstance(found.files, dict) or not isinstance(found.about, dict) or not math.isfinite(found.copy_seconds):
        raise ImageRefused("the state of the image cannot be read")
    if name is not None and found.name != name:
        raise ImageRefused(f"the image was saved as {found.name!r:.60}, not as {name!r:.60}")
    return found
