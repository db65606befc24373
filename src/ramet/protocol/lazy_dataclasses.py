"""`dataclass` for modules that an engine or a program imports at its start: methods are generated at their first use.

The standard library compiles up to seven functions for each class while its module is imported, about half a
millisecond. An engine has 150 of these classes, and uses a third of them before its first cell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *, slots: bool, frozen: bool = False, eq: bool = True, repr: bool = True, kw_only: bool = False
    ) -> Callable[[type], type]:
        """As `dataclasses.dataclass` with ``slots=True``. What it would refuse is refused when the class is used."""

        def decorate(plain: type) -> type:
            def generate() -> type:
                # In another class with slots: the generated methods work in ours alike.
                return dataclasses.dataclass(slots=True, frozen=frozen, eq=eq, repr=repr, kw_only=kw_only)(_copy(plain))

            return _slotted(plain, generate, _generated_names(plain, frozen, eq, repr))

        if not slots:
            raise TypeError("a lazy dataclass has slots")
        return decorate


_CLASS_ATTRIBUTES = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_NOT_COPIED = ("__dict__", "__weakref__")


class _OnUse:
    """Stands in a class for what is generated; the first use of any of these names generates all of them."""

    __slots__ = ("_generate", "_name", "_owner")

    def __init__(self, generate: Callable[[], type]) -> None:
        self._generate = generate

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        # Not locked: two threads generate equal functions, and it does not matter whose stay. A lock would be held for
        # ever in a child that another thread forks meanwhile.
        made = vars(self._generate())
        before = dict(vars(self._owner))
        for name, value in made.items():
            if isinstance(before.get(name), _OnUse) or (name not in before and name not in _NOT_COPIED):
                setattr(self._owner, name, value)
        value = made[self._name]
        return value.__get__(instance, owner) if hasattr(value, "__get__") else value


def _copy(plain: type) -> type:
    """A class that the standard library can change, with the fields' defaults still in it."""
    body = {name: value for name, value in vars(plain).items() if name not in _NOT_COPIED}
    return type(plain)(plain.__name__, plain.__bases__, {**body, "__qualname__": plain.__qualname__})


def _generated_names(plain: type, frozen: bool, eq: bool, repr: bool) -> list[str]:
    own = vars(plain)
    wanted = ["__init__", *_CLASS_ATTRIBUTES, *(["__repr__"] if repr else []), *(["__eq__"] if eq else [])]
    if frozen:
        # Copies and pickles set attributes, which it refuses: hence the last two.
        wanted += ["__setattr__", "__delattr__", "__getstate__", "__setstate__"]
    names = [name for name in wanted if name not in own]
    # A class that defines only __eq__ has None here.
    if eq and frozen and own.get("__hash__") is None:
        names.append("__hash__")
    return names if own.get("__doc__") else [*names, "__doc__"]


def _slotted(plain: type, generate: Callable[[], type], names: list[str]) -> type:
    """The class again, with slots in the place of its fields' defaults."""
    annotations: dict[str, object] = vars(plain).get("__annotations__", {})
    fields = [name for name, kind in annotations.items() if not str(kind).startswith(("ClassVar", "typing.ClassVar"))]
    inherited = {slot for base in plain.__mro__[1:] for slot in vars(base).get("__slots__", ())}
    body = {name: value for name, value in vars(plain).items() if name not in (*fields, *_NOT_COPIED)}
    body["__slots__"] = tuple(name for name in fields if name not in inherited)
    body["__qualname__"] = plain.__qualname__
    body |= {name: _OnUse(generate) for name in names}
    return type(plain)(plain.__name__, plain.__bases__, body)
