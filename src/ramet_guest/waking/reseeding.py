"""`fork(reseed=True)`: gives a new seed to every random generator that can be reached.

Reading a reference is free; taking one writes to the page of the object, and that page is then copied. So the search
does not enter huge containers and stops after a fixed number of objects.
"""

from __future__ import annotations

import gc
import os
import sys
from types import CodeType, ModuleType
from typing import Any

MANY_ITEMS = 10_000
MANY_OBJECTS = 300_000
_NOT_LOOKED_INTO = (str, bytes, bytearray, int, float, complex, bool, type(None), type, CodeType)
_SIZED = (list, tuple, dict, set, frozenset)


def reseed_all(namespace: dict[str, Any]) -> None:
    """Reseeds the generators of modules, and those that names, modules and running functions refer to."""
    random = sys.modules.get("random")
    numpy_random = sys.modules.get("numpy.random")
    torch = sys.modules.get("torch")
    kinds: list[type] = []
    if random is not None:
        random.seed()
        kinds.append(random.Random)
    if numpy_random is not None:
        numpy_random.seed(int.from_bytes(os.urandom(4), "little"))
        kinds += [numpy_random.Generator, numpy_random.RandomState, numpy_random.BitGenerator]
    if torch is not None and hasattr(torch, "Generator"):
        torch.seed()
        kinds.append(torch.Generator)
    if kinds:
        for generator in reachable(namespace, tuple(kinds)):
            reseed(generator)


def reseed(generator: Any) -> None:
    bits = getattr(generator, "_bit_generator", None)  # numpy's Generator and RandomState have one
    if bits is None and hasattr(type(generator), "state"):
        bits = generator  # a BitGenerator by itself
    if bits is not None:
        bits.state = type(bits)().state
    else:
        generator.seed()


def reachable(namespace: dict[str, Any], kinds: tuple[type, ...]) -> list[Any]:
    """Returns instances of these classes, nearest first."""
    found: list[Any] = []
    # Takes single values of modules: the modules themselves would lead to everything there is.
    waiting: list[Any] = [*namespace.values(), *sys._current_frames().values()]
    for module in list(sys.modules.values()):
        waiting += [value for value in vars_of(module).values() if issubclass(type(value), kinds)]
    seen: set[int] = {id(waiting), id(found), id(sys.modules), id(vars(sys))}
    looked_at = 0
    while waiting and looked_at < MANY_OBJECTS:
        fresh: list[Any] = []
        for thing in waiting:
            if id(thing) in seen or type(thing) in _NOT_LOOKED_INTO:
                continue
            seen.add(id(thing))
            looked_at += 1
            if issubclass(type(thing), kinds):  # `isinstance` could run user code (`__class__`)
                found.append(thing)
            elif not is_module_like(thing) and not (type(thing) in _SIZED and len(thing) > MANY_ITEMS):
                fresh.append(thing)
        waiting = []
        for start in range(0, len(fresh), 1000):
            waiting += gc.get_referents(*fresh[start : start + 1000])
    return found


def vars_of(module: Any) -> dict[str, Any]:
    names = getattr(module, "__dict__", None)
    return dict(names) if isinstance(names, dict) else {}


def is_module_like(thing: Any) -> bool:
    """Whether this is a module or its namespace: a function's globals would lead to all other modules."""
    kind = type(thing)
    return issubclass(kind, (ModuleType, type)) or (kind is dict and "__builtins__" in thing)
