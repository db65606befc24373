"""Changes values of images at random, each time in another way for another seed."""

from __future__ import annotations

import random
from typing import Any

_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 7, 255, 4095, 65_536, 2**31, 2**32 - 1, 2**47, 2**62, 2**63, 2**64 - 1, 2**64, 10**30,
    0.5, 1e308, float("inf"), float("nan"), "", "x", "x" * 5000, "../../etc/passwd", "/proc/1/mem", "\0", "[vdso]",
    [], {}, [[]], {"bytes": "AAAA"}, {"bytes": "%"}, {"set": [1]}, {"is": "Dead", "with": {"what": "x"}},
    {"is": "Popen", "with": {}},
)  # fmt: skip


def tamper(value: Any, chance: random.Random) -> str:
    """Change one to three places of plain data. Returns what was done, for messages."""
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        # Few rows, many columns: a place is chosen by its depth first, so that every field gets its turn.
        container, key = value, chance.choice(list(value))
        while isinstance(container[key], dict | list) and container[key] and chance.random() < 0.85:
            container = container[key]
            key = chance.choice(list(container) if isinstance(container, dict) else range(len(container)))
        done.append(f"{key!r:.40}: {_change(container, key, chance)}")
    return "; ".join(done)


def _change(container: Any, key: Any, chance: random.Random) -> str:
    before = container[key]
    way = chance.randrange(6)
    if way == 0 and isinstance(container, dict):
        del container[key]
        return "removed"
    if way == 1 and isinstance(container, list):
        container.insert(key, before)
        return "doubled"
    if way == 2 and isinstance(before, list) and before:
        chance.shuffle(before)
        return "shuffled"
    if type(before) is int and way in (3, 4):
        container[key] = before + chance.choice((-4096, -1, 1, 8, 4096, 1 << 20, 1 << 32, -(1 << 40)))
    elif isinstance(before, str) and before and way in (3, 4):
        at = chance.randrange(len(before))
        container[key] = before[:at] + chance.choice("0f/A=") + before[at + 1 :]
    else:
        container[key] = chance.choice(_VALUES)
    return f"{before!r:.40} -> {container[key]!r:.40}"


def tamper_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    way = chance.randrange(5)
    if way == 0:
        return bytes(changed[: chance.randrange(len(changed) + 1)])
    if way == 1:
        return bytes(changed) + chance.randbytes(chance.randrange(1, 200))
    for _ in range(chance.choice((1, 1, 4, 50))):
        at = chance.randrange(max(1, len(changed) - 8))
        if way == 2:
            changed[at] ^= 1 << chance.randrange(8)
        else:
            word = chance.choice((0, 1, 2**31, 2**47, 2**63, 2**64 - 1, chance.getrandbits(64)))
            changed[at : at + 8] = word.to_bytes(8, "little")
    return bytes(changed)
