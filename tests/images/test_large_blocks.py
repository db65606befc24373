"""Large blocks of the C library are mapped from the page file of an image. Programs must not be able to tell."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.freezing.images.blocks import map_large_blocks
from ramet.freezing.images.manifest import FILLED, MAPPED, MEMORY, PAGES, Segment
from ramet.freezing.images.memory import GROWS_DOWN, PAGE, PRIVATE
from tests.images.stores import ImageFolder

MIB = 1 << 20
# Three blocks side by side, and a bytearray. `crc` tells a block's first bytes from any others.
SAVE = """
from ramet import Sandbox
with Sandbox(memory_mib=2048) as sandbox:
    result = sandbox.run_code('''
import ctypes, zlib
libc = ctypes.CDLL(None, use_errno=True)
for name in ("malloc", "realloc", "calloc", "mremap"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.free.argtypes = [ctypes.c_void_p]
MIB = 1 << 20
SIZE = 40 * MIB
def make(seed):
    at = libc.malloc(SIZE)
    for offset in range(0, SIZE, 4096):
        ctypes.memmove(at + offset, (offset * seed + 1).to_bytes(8, "little"), 8)
    return at
def crc(at, size=SIZE):
    return zlib.crc32(ctypes.string_at(at, size))
def mapped():
    return [line for line in open("/proc/self/maps") if line.rstrip().endswith("/pages")]
blocks = [make(seed) for seed in (3, 5, 7)]
crcs = [crc(at) for at in blocks]
text = bytearray(range(256)) * (48 * MIB // 256)
''', timeout=100)
    assert result.ok, result
    with sandbox.snapshot() as snapshot:
        snapshot.save("blocks")
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, first_store: ImageFolder) -> ImageFolder:
    store = ImageFolder(tmp_path_factory.mktemp("blocks"))
    shutil.copytree(first_store.cache, store.cache, dirs_exist_ok=True)
    store.program(SAVE)
    return store


def values(store: ImageFolder, *cells: str) -> list[str]:
    """What the cells say in a sandbox made from the saved one, in a program of its own."""
    found: list[str] = store.run(*cells, template="blocks")["results"]
    return found


def test_blocks_are_mapped_and_hold_what_was_saved(store: ImageFolder) -> None:
    cells = "len(mapped()) >= 4", "[crc(at) for at in blocks] == crcs", "text[255:258] == b'\\xff\\0\\1'"
    assert values(store, *cells) == ["True", "True", "True"]


def test_a_block_can_grow_shrink_and_grow_again(store: ImageFolder) -> None:
    """The last one, too: behind it the page file ends."""
    grow = "a = libc.realloc(blocks[{0}], 3 * SIZE); ctypes.memset(a + SIZE, 9, 2 * SIZE); crc(a) == crcs[{0}]"
    shrink = (
        "b = libc.realloc(blocks[1], 5 * MIB); b = libc.realloc(b, 2 * SIZE); ctypes.memset(b + 5 * MIB, 1, SIZE); 1"
    )
    kept = "ctypes.string_at(b + 4096 * 9, 8) == (4096 * 9 * 5 + 1).to_bytes(8, 'little')"
    longer = "text.extend(bytes(100 * MIB)); del text[6 * MIB:]; text.extend(b'x' * (200 * MIB)); text[-1], text[300]"
    found = values(store, grow.format(0), grow.format(2), shrink, kept, longer)
    assert found == ["True", "True", "1", "True", "(120, 44)"]


def test_growing_a_block_by_hand_is_refused(store: ImageFolder) -> None:
    """As glibc asks for it: the whole block. It copies the block then."""
    asked = "head = blocks[0] - 16; got = libc.mremap(head, SIZE + 4096, 2 * SIZE, 1); ctypes.c_long(got).value"
    assert values(store, asked, "ctypes.get_errno()") == ["-1", str(errno.EFAULT)]


def test_freed_and_allocated_memory_is_zeros(store: ImageFolder) -> None:
    cells = "for at in blocks: libc.free(at)", "a = libc.calloc(1, SIZE); ctypes.string_at(a, SIZE).count(0) == SIZE"
    assert values(store, *cells)[1] == "True"


def test_writes_stay_in_the_sandbox(store: ImageFolder) -> None:
    image = store.saved("blocks")
    before = (image / "pages").stat()
    write = "for at in blocks: ctypes.memset(at, 1, SIZE)\ntext[:] = bytes(len(text)); crc(blocks[0]) != crcs[0]"
    assert values(store, write) == ["True"]
    after = (image / "pages").stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)
    assert values(store, "[crc(at) for at in blocks] == crcs") == ["True"]


AGAIN = """
import json, os, sys
from ramet import Sandbox
with Sandbox("blocks", memory_mib=2048) as sandbox:
    with sandbox.fork()[0] as child:
        assert child.run_code("ctypes.memset(blocks[1] + 4096 * 5, 3, 100); 1").ok
        assert sandbox.run_code("[crc(at) for at in blocks] == crcs").value == "True"
        seen = child.run_code("[crc(at) for at in blocks]").value
        with child.snapshot() as snapshot:
            snapshot.save("again")
    print(seen)
"""


def test_what_was_mapped_is_forked_saved_and_loaded_again(store: ImageFolder) -> None:
    seen = store.program(AGAIN).strip()
    assert store.run("[crc(at) for at in blocks]", "len(mapped()) > 3", template="again")["results"] == [seen, "True"]


TRUNCATE = """
import os, sys
from ramet import Sandbox
with Sandbox("blocks") as sandbox, Sandbox() as neighbour:
    neighbour.run_code("x = 1")
    os.truncate(sys.argv[1], 0)
    result = sandbox.run_code("crc(blocks[0])")
    print(result.ok, result.state, neighbour.run_code("x").value)
"""


def test_a_page_file_that_is_cut_short_costs_one_sandbox(store: ImageFolder, tmp_path: Path) -> None:
    other = ImageFolder(tmp_path / "cache")
    shutil.copytree(store.cache, other.cache)
    printed = other.program(TRUNCATE, str(other.saved("blocks") / "pages")).split()
    assert printed[0] == "False"
    assert printed[1] in ("lost", "restored")
    assert printed[2] == "1"


# Which blocks are found


class PageFile:
    """Pages of an image that a test makes up."""

    def __init__(self) -> None:
        self.file = os.memfd_create("pages")
        self.segments: list[Segment] = []
        self._length = 0

    def add(self, start: int, size: int, *blocks: tuple[int, int], **changed: object) -> None:
        """A segment, with a header of a block of this size at each offset."""
        for offset, length in blocks:
            os.pwrite(self.file, struct.pack("<2Q", 0, length | 2), self._length + offset)
        row = {"kind": PAGES, "protection": 3, "flags": PRIVATE, **changed}
        self.segments.append(
            Segment(start=start, end=start + size, advice=(), source=0, offset=self._length, **row)  # type: ignore[arg-type]
        )
        self._length += size
        os.ftruncate(self.file, self._length)

    def mapped(self) -> list[tuple[int, int]]:
        planned = map_large_blocks(self.segments, [self.file])
        # Nothing is lost, doubled or moved.
        assert [each.start for each in planned if each.kind != FILLED] == sorted({each.start for each in planned})
        for kind in (PAGES, MAPPED):
            for each in planned:
                (whole,) = (one for one in self.segments if one.start <= each.start and each.end <= one.end)
                if each.kind == kind:
                    assert each.offset - whole.offset == each.start - whole.start
        total = sum(each.end - each.start for each in self.segments)
        assert sum(each.end - each.start for each in planned) == total
        return [(each.start, each.end) for each in planned if each.kind == MAPPED]


@pytest.fixture
def pages() -> Iterator[PageFile]:
    made = PageFile()
    yield made
    os.close(made.file)


AT = 0x7000_0000_0000


def test_all_of_a_block_but_its_first_page_is_mapped(pages: PageFile) -> None:
    pages.add(AT, 8 * MIB, (0, 8 * MIB))
    assert pages.mapped() == [(AT + PAGE, AT + 8 * MIB)]


def test_blocks_side_by_side_are_found_in_one_mapping(pages: PageFile) -> None:
    pages.add(AT, 20 * MIB, (0, 8 * MIB), (8 * MIB, 256 << 10), ((8 * MIB) + (256 << 10), 10 * MIB))
    last = AT + 8 * MIB + (256 << 10)
    assert pages.mapped() == [(AT + PAGE, AT + 8 * MIB), (last + PAGE, last + 10 * MIB)]


def test_a_block_of_several_mappings_is_one(pages: PageFile) -> None:
    """As an array for which huge pages were asked, all but its first page; what was never written has no pages."""
    pages.add(AT, PAGE, (0, 16 * MIB))
    pages.add(AT + PAGE, 8 * MIB)
    pages.add(AT + PAGE + 8 * MIB, 8 * MIB - PAGE, kind=MEMORY)
    assert pages.mapped() == [(AT + PAGE, AT + PAGE + 8 * MIB)]


def test_the_rest_of_a_mapping_is_copied(pages: PageFile) -> None:
    pages.add(AT, 16 * MIB, (0, 8 * MIB))
    assert pages.mapped() == [(AT + PAGE, AT + 8 * MIB)]


@pytest.mark.parametrize(
    "size", [0, 8 * MIB + 1, 8 * MIB + 16, 32 * MIB, 1 << 62, (1 << 64) - PAGE], ids=lambda size: f"{size:#x}"
)
def test_a_size_that_cannot_be_is_no_block(pages: PageFile, size: int) -> None:
    pages.add(AT, 16 * MIB)
    os.pwrite(pages.file, struct.pack("<2Q", 0, size | 2), 0)
    assert pages.mapped() == []


@pytest.mark.parametrize("head", [(PAGE, 8 * MIB | 2), (0, 8 * MIB), (0, 8 * MIB | 6), (0, 8 * MIB | 3)])
def test_what_does_not_begin_like_a_mapped_block_is_none(pages: PageFile, head: tuple[int, int]) -> None:
    pages.add(AT, 16 * MIB)
    os.pwrite(pages.file, struct.pack("<2Q", *head), 0)
    assert pages.mapped() == []


@pytest.mark.parametrize(
    "changed", [{"protection": 1}, {"protection": 7}, {"flags": PRIVATE | GROWS_DOWN}, {"kind": MEMORY}]
)
def test_only_plain_memory_is_mapped(pages: PageFile, changed: dict[str, object]) -> None:
    pages.add(AT, 8 * MIB, (0, 8 * MIB), **changed)
    assert pages.mapped() == []


def test_a_gap_ends_a_block(pages: PageFile) -> None:
    pages.add(AT, 6 * MIB, (0, 12 * MIB))
    pages.add(AT + 7 * MIB, 5 * MIB)
    assert pages.mapped() == []


def test_small_blocks_and_small_pieces_are_copied(pages: PageFile) -> None:
    pages.add(AT, 2 * MIB, (0, 2 * MIB))
    start = AT + 64 * MIB
    pages.add(start, PAGE, (0, 32 * PAGE * 100))
    for number in range(1, 100):  # as after many small changes: each piece comes from another place
        pages.add(start + PAGE + (number - 1) * 32 * PAGE, 32 * PAGE)
    assert pages.mapped() == []


def test_a_page_file_that_is_too_short_is_not_mapped(pages: PageFile) -> None:
    """A mapping beyond its end would end the process; who copies says what is wrong."""
    pages.add(AT, 8 * MIB, (0, 8 * MIB))
    os.ftruncate(pages.file, 6 * MIB)
    assert pages.mapped() == []


def test_files_of_other_machines_are_not_mapped(pages: PageFile, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.add(AT, 8 * MIB, (0, 8 * MIB))
    monkeypatch.setattr("ramet.freezing.images.blocks.syscalls.file_system_type", lambda _: 0x6969)  # NFS
    assert pages.mapped() == []


def test_a_hostile_list_of_segments_takes_no_long_time(pages: PageFile) -> None:
    """Thousands of mappings, each with a block of one page: each is looked at once."""
    reads = 0
    real = os.pread

    def counted(*arguments: int) -> bytes:
        nonlocal reads
        reads += 1
        return real(*arguments)

    for number in range(20_000):
        pages.add(AT + number * PAGE, PAGE, (0, PAGE))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "pread", counted)
        assert map_large_blocks(pages.segments, [pages.file]) == tuple(pages.segments)
    assert reads <= 20_000
