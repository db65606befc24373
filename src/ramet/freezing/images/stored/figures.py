"""Figures of a store of images for people, and the last failure that an engine met with it."""

from __future__ import annotations

import contextlib
import json
import time

from ramet.errors import RametError
from ramet.freezing.images.stored.store import PASSING_PREFIX, PAST_PREFIX, TEMPLATE_PREFIX, ImageStore
from ramet.protocol.lazy_dataclasses import dataclass

_PREFIXES = (
    (TEMPLATE_PREFIX, "template"),
    ("saved-", "snapshot"),
    ("space-", "sandbox"),
    (PAST_PREFIX, "point"),
    (PASSING_PREFIX, "passing"),
)
KINDS = (*(kind for _, kind in _PREFIXES), "unnamed")
_ERROR_FILE = "last-error"
_ERROR_BYTES_AT_MOST = 4096


@dataclass(slots=True)
class KindFigures:
    """The images of one kind. ``oldest_used``: when the least recently used one was used, in seconds since 1970."""

    images: int = 0
    size_bytes: int = 0
    oldest_used: float | None = None


def kind_of(name: str | None) -> str:
    """The kind of an image, by its name in the store."""
    return next((kind for prefix, kind in _PREFIXES if name is not None and name.startswith(prefix)), "unnamed")


def figures(store: ImageStore) -> dict[str, KindFigures]:
    """By kind. Reads names and sizes of all images: some milliseconds for hundreds."""
    found = {kind: KindFigures() for kind in KINDS}
    for image in store.images():
        of_kind = found[kind_of(image.names[0] if image.names else None)]
        of_kind.images += 1
        of_kind.size_bytes += image.size_bytes
        if of_kind.oldest_used is None or image.used < of_kind.oldest_used:
            of_kind.oldest_used = image.used
    return found


def keep_error(store: ImageStore, what: str) -> None:
    """Keep a failure in the folder, in place of the one before: who looks later is mostly another process."""
    data = json.dumps({"at": time.time(), "what": what[: _ERROR_BYTES_AT_MOST // 8]}).encode()
    with contextlib.suppress(OSError):  # the disk may be full, which is why there was a failure
        store.replace_file(_ERROR_FILE, data)


def last_error(store: ImageStore) -> tuple[float, str] | None:
    """When, and what. None: nothing has failed, or what is there was not written by `keep_error`."""
    try:
        found = json.loads(store.read_file(_ERROR_FILE, _ERROR_BYTES_AT_MOST))
        at, what = found["at"], found["what"]
    except (OSError, RametError, ValueError, KeyError, TypeError):
        return None
    return (float(at), what) if isinstance(at, (int, float)) and isinstance(what, str) else None
