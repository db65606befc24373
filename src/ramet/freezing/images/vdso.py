"""The kernel's vdso in an image: moved where it is the same, carried along where this kernel has another one.

Memory is full of pointers to its entries, which the C library has looked up once. On another kernel the bytes of the
old vdso stay where they were, as plain memory, and each of its entries jumps to the one of the same name in the vdso of
this kernel. An entry that this kernel lacks makes the system call. It stays an ELF file for whoever parses it later.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ramet.freezing.images.manifest import ASIDE_END, TOP, ImageRefused, Manifest
from ramet.freezing.images.memory import PAGE
from ramet.isolation.kernel.syscall_numbers import X86_64
from ramet.protocol.lazy_dataclasses import dataclass

PART = "vdso"  # the file of an image that has its bytes

_ELF = b"\x7fELF\x02\x01"  # 64 bits, little endian
_DYNAMIC = 2  # PT_DYNAMIC
_STRINGS, _SYMBOLS, _STRINGS_SIZE = 5, 6, 10  # DT_STRTAB, DT_SYMTAB, DT_STRSZ
_SYMBOL = struct.Struct("<IBBHQQ")
_HEADERS_AT_MOST, _TAGS_AT_MOST, _SYMBOLS_AT_MOST, _NAME_AT_MOST = 16, 64, 64, 64
_FUNCTION_KINDS = (0, 2)  # STT_NOTYPE, STT_FUNC
_PREFIX = "__vdso_"
# Places for the vdso of this kernel: where neither images nor the calls that pour them have anything.
_STEP = 1 << 24
_STEPS = 256


@dataclass(frozen=True, slots=True)
class Homes:
    """Where the areas of this kernel go in the memory of an image, and the old vdso if it is carried along."""

    areas: Mapping[str, int]  # name: address
    carried_at: int = 0
    carried: bytes = b""


def find_homes(manifest: Manifest, old: bytes, here: Mapping[str, tuple[int, int]], new: bytes) -> Homes:
    """``old``: the vdso of the image. ``here``, ``new``: the areas of an empty process, and its vdso.

    Raises ImageRefused where the old one cannot be carried along.
    """
    there = {name: (start, end) for name, start, end in manifest.kernels_areas}
    start, end = there["[vdso]"]
    if len(old) != end - start:
        raise ImageRefused("the vdso of the image is not as long as its place")
    if old == new and _sizes(here) == _sizes(there):
        return Homes({name: start for name, (start, _) in there.items()})
    place = _free_place(manifest, sum(_sizes(here).values()))
    lowest = min(start for start, _ in here.values())
    # Together, as they were: the code of a vdso finds its data by their distance.
    span = max(end for _, end in here.values()) - lowest
    if span != sum(_sizes(here).values()):
        raise ImageRefused("the kernel's own areas do not lie side by side in a new process")
    areas = {name: place + start - lowest for name, (start, _) in here.items()}
    return Homes(areas, start, _redirected(old, areas["[vdso]"], new))


def entries(data: bytes) -> dict[str, int]:
    """The functions of a vdso and their offsets. Raises ImageRefused for anything that is no such ELF file."""
    try:
        return _entries(data)
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise ImageRefused("the vdso of the image cannot be read") from error


def _sizes(areas: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    return {name: end - start for name, (start, end) in areas.items()}


def _free_place(manifest: Manifest, size: int) -> int:
    taken = [(segment.start, segment.end) for segment in manifest.segments]
    taken += [(start, end) for _, start, end in manifest.kernels_areas]
    for place in range(ASIDE_END, ASIDE_END + _STEPS * _STEP, _STEP):
        # With room on both sides: nothing that grows comes to lie against it.
        if all(end + PAGE <= place or start >= place + size + PAGE for start, end in taken) and place + size < TOP:
            return place
    raise ImageRefused("the memory of the image leaves no room for the vdso of this kernel")


def _redirected(old: bytes, at: int, new: bytes) -> bytes:
    """The old vdso, each of whose entries leads to the new one, which is at this address."""
    known = entries(new)
    found = entries(old)
    data = bytearray(old)
    offsets = sorted(set(found.values()))
    for name, offset in found.items():
        code = _entry(name, None if name not in known else at + known[name])
        after = offsets.index(offset) + 1
        room = (offsets[after] if after < len(offsets) else len(old)) - offset
        if len(code) > room:
            raise ImageRefused(f"{name} in the vdso of the image is too short to lead anywhere else")
        data[offset : offset + len(code)] = code
    return bytes(data)


def _entry(name: str, target: int | None) -> bytes:
    """Machine code of x86-64."""
    if name == "getrandom":
        # Its state is of the old kernel's shape. Who asks for the shape (opaque_len is ~0) is told that there is none.
        #   cmp $-1,%r8; je 1f; mov $NUMBER,%eax; syscall; ret; 1: mov $-ENOSYS,%rax; ret
        number = struct.pack("<I", X86_64["getrandom"])
        return b"\x49\x83\xf8\xff\x74\x08\xb8" + number + b"\x0f\x05\xc3" + _NOT_THERE
    if target is not None:
        return b"\x48\xb8" + struct.pack("<Q", target) + b"\xff\xe0"  # movabs $target,%rax; jmp *%rax
    if name in X86_64:
        return b"\xb8" + struct.pack("<I", X86_64[name]) + b"\x0f\x05\xc3"  # mov $number,%eax; syscall; ret
    return _NOT_THERE


_NOT_THERE = b"\x48\xc7\xc0\xda\xff\xff\xff\xc3"  # mov $-ENOSYS,%rax; ret


def _entries(data: bytes) -> dict[str, int]:
    if not data.startswith(_ELF):
        raise ValueError("no ELF file")
    (headers_at,) = struct.unpack_from("<Q", data, 32)
    header_size, headers = struct.unpack_from("<HH", data, 54)
    tags: dict[int, int] = {}
    for number in range(min(headers, _HEADERS_AT_MOST)):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", data, headers_at + number * header_size)
        if kind == _DYNAMIC:
            for tag_at in range(offset, offset + min(size, _TAGS_AT_MOST * 16), 16):
                tag, value = struct.unpack_from("<QQ", data, tag_at)
                tags.setdefault(tag, value)
    symbols, strings = tags[_SYMBOLS], tags[_STRINGS]
    names = data[strings : strings + tags[_STRINGS_SIZE]]
    # The linker puts the names right behind the symbols; nothing else says how many there are in every kernel.
    count = (strings - symbols) // _SYMBOL.size
    if not 0 < count <= _SYMBOLS_AT_MOST:
        raise ValueError("no symbols")
    found: dict[str, int] = {}
    for number in range(count):
        name_at, info, _, section, value, _ = _SYMBOL.unpack_from(data, symbols + number * _SYMBOL.size)
        name = names[name_at : names.index(b"\0", name_at)].decode("ascii")
        if section in (0, 0xFFF1) or info & 0xF not in _FUNCTION_KINDS:  # SHN_UNDEF; SHN_ABS: a version
            continue
        if not 0 < value < len(data) or len(name) > _NAME_AT_MOST:
            raise ValueError("a symbol outside")
        found[name.removeprefix(_PREFIX)] = value
    if not found:
        raise ValueError("no functions")
    return found
