"""Exported files, taken apart and put together again with anything changed: every hash in them is right."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramet.freezing.images.moving.blocks import BLOCK_BYTES, DATA, INDEX, PART, BlockReader, BlockWriter

JSON_PARTS = ("manifest.json", "state", "sources")


class ExportedFile:
    """The parts of one exported file, those that are JSON as values."""

    def __init__(self, path: Path) -> None:
        self.parts: dict[str, Any] = {}
        with path.open("rb") as file:
            reader = BlockReader(file, 1 << 40)
            index = reader.next()
            assert index is not None
            self.index = json.loads(index.data)
            data: list[bytearray] = []
            while (block := reader.next()) is not None:
                if block.kind == PART:
                    data.append(bytearray(self.index["parts"][len(data)][1]))
                else:
                    data[-1][block.offset : block.offset + len(block.data)] = block.data
        for (name, _), found in zip(self.index["parts"], data, strict=True):
            self.parts[name] = json.loads(found) if name in JSON_PARTS else bytes(found)

    def write(self, path: Path, sizes: Callable[[dict[str, int]], None] = lambda _: None) -> Path:
        """``sizes`` changes what the file says of its parts."""
        data = {name: json.dumps(part).encode() if name in JSON_PARTS else part for name, part in self.parts.items()}
        told = {name: len(part) for name, part in data.items()}
        sizes(told)
        with path.open("wb") as file:
            writer = BlockWriter(file.write)
            writer.block(INDEX, 0, json.dumps({**self.index, "parts": list(told.items())}).encode())
            for number, part in enumerate(data.values()):
                writer.block(PART, number, b"")
                for at in range(0, len(part), BLOCK_BYTES):
                    if any(part[at : at + BLOCK_BYTES]):
                        writer.block(DATA, at, part[at : at + BLOCK_BYTES])
            writer.end()
        return path

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = self.parts["manifest.json"]
        return found

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.parts["state"]
        return found

    @property
    def process(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state["process"]["with"]
        return found

    @property
    def descriptions(self) -> list[Any]:
        found: list[Any] = self.state["descriptors"]["with"]["descriptions"]
        return found

    def things(self, kind: str) -> list[dict[str, Any]]:
        """The fields of all open things of a kind."""
        things = [each["with"]["thing"] for each in self.descriptions]
        return [thing["with"] for thing in things if thing["is"] == kind]

    def give_files(self, headers: list[dict[str, Any]]) -> None:
        """Replace its files by these, which have no contents."""
        encoded = [json.dumps(header).encode() for header in headers]
        self.parts["files"] = b"".join(len(each).to_bytes(4, "little") + each for each in encoded)
        self.state["files"] = {
            "trees": [{"kind": "files", "entries": len(headers), "bytes": 0}],
            "file_bytes": 0,
            "sha256": hashlib.sha256(self.parts["files"]).hexdigest(),
        }


def as_bytes(data: bytes) -> dict[str, str]:
    """Bytes as a state has them."""
    return {"bytes": base64.b64encode(data).decode("ascii")}
