"""Images that leave out what an earlier one has: the same memory as a whole image, whatever has happened between."""

from __future__ import annotations

import json

import pytest

from ramet import Sandbox
from tests.fork.relatives import run, value
from tests.images.stores import ImageFolder

SAVE_TWICE = """
import json, os
from ramet import Sandbox
from tests.images.stores import ImageFolder
with Sandbox() as sandbox:
    sandbox.run_code("import os; data = [os.urandom(4096) for _ in range(8000)]")
    sizes = []
    for code in ("", "data[5] = os.urandom(4096); data[6] = b'changed'", "x = 1"):
        assert sandbox.run_code(code or "1").ok
        with sandbox.snapshot() as snapshot:
            snapshot.save("grows")
        (image,) = [path for path in ImageFolder(__import__("pathlib").Path(os.environ["XDG_CACHE_HOME"])).images()
                    if (path / "state").exists()]
        sizes.append((image / "pages").stat().st_blocks * 512)
    import hashlib
    print(json.dumps([sizes, sandbox.run_code("import hashlib; hashlib.sha256(b''.join(data)).hexdigest()").text]))
"""
LOOK = "import hashlib; hashlib.sha256(b''.join(data)).hexdigest()"


def test_an_increment_is_small_and_whole(store: ImageFolder) -> None:
    sizes, expected = json.loads(store.program(SAVE_TWICE))
    assert sizes[0] > 30 << 20
    assert all(size < sizes[0] * 0.2 for size in sizes[1:]), sizes
    found = store.run(LOOK, "x, data[6]", template="grows")
    assert found["results"] == [expected, "(1, b'changed')"]


# Each cell moves, frees, or rewrites memory in a way that a page's address alone does not show.
STEPS = {
    "realloc moves pages": (
        "import ctypes, os; libc = ctypes.CDLL(None)\n"
        "for f in ('malloc', 'realloc'): getattr(libc, f).restype = ctypes.c_void_p\n"
        "libc.free.argtypes = [ctypes.c_void_p]; libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]\n"
        "M = 16 << 20; a, b = libc.malloc(M), libc.malloc(M)\n"
        "ctypes.memset(a, 1, M)\n"
        "for i in range(M // 4096): ctypes.memmove(b + i * 4096, i.to_bytes(8, 'little'), 8)\n",
        "libc.free(a); b = libc.realloc(b, 2 * M)",
        "hashlib.sha256(ctypes.string_at(b, M)).hexdigest()",
    ),
    "mremap over freed memory": (
        "import mmap; own = mmap.MAP_PRIVATE; m = mmap.mmap(-1, 8 << 20, own); n = mmap.mmap(-1, 8 << 20, own)\n"
        "for i in range(2048): m[i * 4096] = i % 251; n[i * 4096] = i % 241\n",
        "m.close(); n.resize(24 << 20); m = mmap.mmap(-1, 8 << 20, own)\nfor i in range(0, 2048, 3): m[i * 4096] = 7",
        "hashlib.sha256(n[:]).hexdigest(), hashlib.sha256(m[:]).hexdigest()",
    ),
    "the heap grows and shrinks": (
        "blocks = [bytes([i % 256]) * 3000 for i in range(20_000)]",
        "del blocks[::2]; more = [bytes([(i * 7) % 256]) * 2900 for i in range(15_000)]",
        "hashlib.sha256(b''.join(blocks) + b''.join(more)).hexdigest()",
    ),
    "pages become zero": (
        "room = bytearray(b'y' * (8 << 20))",
        "room[1 << 20 : 5 << 20] = bytes(4 << 20)",
        "hashlib.sha256(room).hexdigest()",
    ),
    "huge pages": (
        "import mmap; big = mmap.mmap(-1, 16 << 20, mmap.MAP_PRIVATE); big.madvise(mmap.MADV_HUGEPAGE)\n"
        "for i in range(0, 16 << 20, 512): big[i] = i % 253",
        "big[3 << 20] = 9; big[(9 << 20) + 77] = 8",
        "hashlib.sha256(big[:]).hexdigest()",
    ),
    "a fork between": (
        "room = bytearray(b'z' * (4 << 20))",
        "room[::4096] = b'f' * 1024",
        "hashlib.sha256(room).hexdigest()",
    ),
}


_IN_THE_FAST_TIER = ("realloc moves pages", "mremap over freed memory")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in _IN_THE_FAST_TIER else pytest.mark.deep("load")) for name in STEPS],
)
def test_an_increment_after(name: str, sandbox: Sandbox) -> None:
    before, change, look = STEPS[name]
    saved_as = f"increment-{list(STEPS).index(name)}"
    run(sandbox, f"import hashlib\n{before}")
    with sandbox.snapshot() as snapshot:
        snapshot.save(saved_as)
    if name == "a fork between":
        sandbox.fork(1)[0].close()
    run(sandbox, change)
    expected = value(sandbox, look)
    with sandbox.snapshot() as snapshot:
        snapshot.save(saved_as)
    with Sandbox(saved_as) as copy:
        assert value(copy, look) == expected
        run(copy, change if name == "pages become zero" else "more_of_it = bytearray(1 << 20)")
        # From an increment to the next: more page files than one.
        expected = value(copy, look)
        with copy.snapshot() as snapshot:
            snapshot.save(saved_as)
    with Sandbox(saved_as) as copy:
        assert value(copy, look) == expected


@pytest.mark.deep("load")
def test_a_long_chain_of_increments_is_written_whole_again(sandbox: Sandbox) -> None:
    run(sandbox, "import os; rows = []")
    for _ in range(12):
        run(sandbox, "rows.append(os.urandom(100_000))")
        with sandbox.snapshot() as snapshot:
            snapshot.save("long-chain")
    with Sandbox("long-chain") as copy:
        assert value(copy, "len(rows)") == 12
        assert value(copy, "rows[3] == rows[3] and len(set(rows))") == 12
