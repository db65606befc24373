"""The process that packs or unpacks one image for an engine, at the lowest priority and with little room.

In the engine itself, compressing would slow down the cells of all sandboxes, and a file from elsewhere would be taken
apart beside them. Arguments: `pack` or `unpack`, and a JSON object with the descriptors that it was given.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence

from ramet.errors import RametError
from ramet.freezing.images.manifest import MANIFEST_BYTES_AT_MOST, Manifest
from ramet.freezing.images.moving import mapped_files
from ramet.freezing.images.moving.packing import pack
from ramet.freezing.images.moving.unpacking import unpack
from ramet.protocol.import_terms import ImportTerms

_MEMORY_BYTES = 1 << 30
_WRITTEN_AT_ONCE = 1 << 20


def main(arguments: Sequence[str]) -> int:
    action, given = arguments[0], json.loads(arguments[1])
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        if action == "pack":
            _pack(given)
        else:
            made = unpack(sys.stdin.buffer, given["folder"], ImportTerms.read(given["terms"]))
            sys.stdout.buffer.write(made.encode())
            sys.stdout.buffer.flush()
    except RametError as error:
        print(json.dumps({"message": error.message, "hint": error.hint}), file=sys.stderr)
        return 1
    except MemoryError:
        print(json.dumps({"message": "it takes too much memory to read", "hint": None}), file=sys.stderr)
        return 1
    except OSError as error:
        print(json.dumps({"message": error.strerror or str(error), "hint": None}), file=sys.stderr)
        return 1
    return 0


def _pack(given: dict[str, object]) -> None:
    parts: dict[str, bytes | int] = dict(given["parts"])  # type: ignore[call-overload]
    described = parts.pop("manifest.json")
    assert isinstance(described, int)
    manifest = Manifest.read(os.pread(described, MANIFEST_BYTES_AT_MOST, 0))
    root = given["root"]
    assert isinstance(root, int)
    parts["sources"] = mapped_files.digests(root, manifest.files)
    pages: tuple[int, ...] = tuple(given["pages"])  # type: ignore[arg-type]
    with open(sys.stdout.fileno(), "wb", buffering=_WRITTEN_AT_ONCE, closefd=False) as out:
        pack(manifest, parts, pages, out.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
