"""Features that an image needs of a processor: those by which code in its memory was chosen.

The C library and numeric libraries choose their functions once, by what the processor says of itself. Flags of the
kernel and of microcode that no program can choose by (mitigations, virtualization, power) are left out on purpose.
"""

from __future__ import annotations

from functools import cache

from ramet.freezing import _core
from ramet.freezing.images.manifest import ImageRefused
from ramet.protocol.lazy_dataclasses import dataclass

_EAX, _EBX, _ECX, _EDX = range(4)
# Leaf and part of CPUID, register: names of bits, as /proc/cpuinfo has them.
_FEATURES: dict[tuple[int, int, int], dict[int, str]] = {
    (1, 0, _ECX): {
        0: "sse3", 1: "pclmulqdq", 9: "ssse3", 12: "fma", 13: "cx16", 19: "sse4_1", 20: "sse4_2", 22: "movbe",
        23: "popcnt", 25: "aes", 26: "xsave", 27: "osxsave", 28: "avx", 29: "f16c", 30: "rdrand",
    },
    (1, 0, _EDX): {
        0: "fpu", 4: "tsc", 8: "cx8", 15: "cmov", 19: "clflush", 23: "mmx", 24: "fxsr", 25: "sse", 26: "sse2",
    },
    (7, 0, _EBX): {
        0: "fsgsbase", 3: "bmi1", 5: "avx2", 8: "bmi2", 11: "rtm", 16: "avx512f", 17: "avx512dq", 18: "rdseed",
        19: "adx", 21: "avx512ifma", 23: "clflushopt", 24: "clwb", 26: "avx512pf", 27: "avx512er", 28: "avx512cd",
        29: "sha_ni", 30: "avx512bw", 31: "avx512vl",
    },
    (7, 0, _ECX): {
        1: "avx512vbmi", 5: "waitpkg", 6: "avx512_vbmi2", 8: "gfni", 9: "vaes", 10: "vpclmulqdq", 11: "avx512_vnni",
        12: "avx512_bitalg", 14: "avx512_vpopcntdq", 22: "rdpid", 27: "movdiri", 28: "movdir64b",
    },
    (7, 0, _EDX): {
        2: "avx512_4vnniw", 3: "avx512_4fmaps", 8: "avx512_vp2intersect", 14: "serialize", 16: "tsxldtrk",
        22: "amx_bf16", 23: "avx512_fp16", 24: "amx_tile", 25: "amx_int8",
    },
    (7, 1, _EAX): {
        0: "sha512", 1: "sm3", 2: "sm4", 4: "avx_vnni", 5: "avx512_bf16", 7: "cmpccxadd", 21: "amx_fp16",
        23: "avx_ifma",
    },
    (7, 1, _EDX): {4: "avx_vnni_int8", 5: "avx_ne_convert", 8: "amx_complex", 10: "avx_vnni_int16", 19: "avx10"},
    (0xD, 1, _EAX): {0: "xsaveopt", 1: "xsavec", 2: "xgetbv1"},
    (0x8000_0001, 0, _ECX): {
        0: "lahf_lm", 5: "abm", 6: "sse4a", 7: "misalignsse", 11: "xop", 16: "fma4", 21: "tbm",
    },
    (0x8000_0001, 0, _EDX): {11: "syscall", 22: "mmxext", 27: "rdtscp", 29: "lm"},
    (0x8000_0008, 0, _EBX): {0: "clzero"},
}  # fmt: skip
# Sets of registers that C libraries keep room for. AMX tiles are looked at in the state of each thread.
_REGISTER_SETS = {2: "avx", 5: "avx512 masks", 6: "avx512 upper halves", 7: "avx512 registers 16 to 31"}
_TEXT_AT_MOST = 8192


@dataclass(frozen=True, slots=True)
class Processor:
    """Features by name, and where XSAVE puts each set of registers: number, size, offset."""

    features: frozenset[str]
    places: frozenset[tuple[int, int, int]]

    def text(self) -> str:
        """One line, for a manifest."""
        places = (":".join(map(str, place)) for place in sorted(self.places))
        return " ".join([*sorted(self.features), "/", *places])

    @classmethod
    def parse(cls, text: str) -> Processor:
        """Raises ImageRefused."""
        features, slash, places = text.partition("/")
        try:
            if not slash or len(text) > _TEXT_AT_MOST:
                raise ValueError
            rows = [tuple(map(int, place.split(":"))) for place in places.split()]
            return cls(frozenset(features.split()), frozenset((number, size, at) for number, size, at in rows))
        except ValueError as error:
            raise ImageRefused("the image does not say which processor it was made on") from error

    def missing_for(self, needed: Processor) -> list[str]:
        """Names of features that an image needs and this processor lacks."""
        missing = sorted(needed.features - self.features)
        here = {number for number, _, _ in self.places}
        for number, _, _ in sorted(needed.places - self.places):
            name = _REGISTER_SETS.get(number, f"register set {number}")
            missing.append(f"{name} at another place" if number in here else f"{name} (off in this kernel)")
        return missing


@cache
def processor_here() -> Processor:
    features: set[str] = set()
    for (leaf, part, register), names in _FEATURES.items():
        word = _core.cpuid(leaf, part)[register]
        features.update(name for bit, name in names.items() if word >> bit & 1)
    enabled = _core.enabled_states()
    places: set[tuple[int, int, int]] = set()
    for number in _REGISTER_SETS:
        if enabled >> number & 1:
            size, offset, _, _ = _core.cpuid(0xD, number)
            places.add((number, size, offset))
    return Processor(frozenset(features), frozenset(places))


def check_processor(needed: str) -> None:
    """Raises ImageRefused, which names the features that this machine lacks."""
    missing = processor_here().missing_for(Processor.parse(needed))
    if missing:
        raise ImageRefused(
            f"the processor of this machine lacks what the image was made with: {', '.join(missing)}",
            hint="use it on a machine that has these, or make it again on this one",
        )
