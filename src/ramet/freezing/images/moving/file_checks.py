"""Checks the files of an image from elsewhere: how many, how large, and what each may be."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from typing import Any

from ramet.freezing.images.moving.values import demand
from ramet.isolation.files.layers import MOST_LAYERS
from ramet.protocol.values.specs import Limits

_SLACK_BYTES = 64 << 20
_ENTRY_BYTES = 4096
_TOP = re.compile(r"root|tree[0-9]{1,4}")
_IDS_AT_MOST = 65_536
_TIMES = 1 << 62
_ATTRIBUTES_AT_MOST, _ATTRIBUTE_BYTES = 64, 64 << 10
_OPAQUE = "user.overlay.opaque"
_OVERLAYS = "user.overlay."
_NUMBERS_BYTES = 1 << 20
_SET_ID = stat.S_ISUID | stat.S_ISGID


def check_trees(about: Mapping[str, Any], limits: Limits) -> None:
    """Check the list of files in a state before one of them is made: they take memory."""
    trees = about.get("trees")
    demand(isinstance(trees, list) and len(trees) <= MOST_LAYERS + 2, "its files")
    assert isinstance(trees, list)
    kinds = [tree.get("kind") if isinstance(tree, dict) else None for tree in trees]
    demand(set(kinds) <= {"files", "shm", "layer"}, "files of an unknown kind")
    demand(kinds.count("files") <= 1 and kinds.count("shm") <= 1, "files twice")
    total = 0
    for tree in trees:
        numbers = [tree.get(name, 0) for name in ("entries", "bytes", "size_bytes", "layer_entries")]
        demand(all(type(number) is int and 0 <= number < _TIMES for number in numbers), "the size of its files")
        total += tree["bytes"] + tree["entries"] * _ENTRY_BYTES
    most = limits.disk_bytes + limits.memory_bytes + _SLACK_BYTES  # shared memory is charged to memory
    demand(total <= most, f"files of {total} bytes, where {limits.disk_bytes} are allowed")
    held = about.get("file_bytes")
    demand(type(held) is int and 0 <= held < _TIMES and isinstance(about.get("sha256"), str), "its files")


def clean(kind: str, path: str, header: dict[str, Any]) -> dict[str, Any]:
    """The header of one file as it may be made: no ids that change who runs it, no marks for the kernel's overlays."""
    mode = header["mode"]
    if kind != "shm" and "/" not in path:
        # The builder of a pod gives these files the numbers that they had, as far as that goes.
        numbers = kind == "files" and path == "numbers" and stat.S_ISREG(mode) and header["size"] <= _NUMBERS_BYTES
        demand(numbers or (bool(_TOP.fullmatch(path)) and stat.S_ISDIR(mode)), f"files at {path!r:.60}")
    owner, times = header["owner"], header["times"]
    demand(_are_numbers(owner, 2, _IDS_AT_MOST) and _are_numbers(times, 2, _TIMES), f"the owner of {path!r:.60}")
    made = {**header, "mode": mode & ~_SET_ID if stat.S_ISREG(mode) else mode & ~stat.S_ISUID}
    attributes = header.get("attributes", {})
    demand(isinstance(attributes, dict) and len(attributes) <= _ATTRIBUTES_AT_MOST, f"the attributes of {path!r:.60}")
    made["attributes"] = {}
    for encoded, value in attributes.items():
        name = bytes.fromhex(encoded).decode("utf-8", "replace")
        demand(name.startswith("user.") and len(value) <= _ATTRIBUTE_BYTES, f"the attribute {name!r:.60}")
        # Of the overlay's own only that a folder hides the one below: the kernel trusts what the others say.
        if not name.startswith(_OVERLAYS) or (name == _OPAQUE and bytes.fromhex(value) in (b"y", b"x")):
            made["attributes"][encoded] = value
    if stat.S_ISREG(mode) and "same_as" not in header:
        demand(type(header["size"]) is int and 0 <= header["size"] < _TIMES, f"the size of {path!r:.60}")
    return made


def _are_numbers(values: object, count: int, most: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) is int and -most < value < most for value in values)
    )
