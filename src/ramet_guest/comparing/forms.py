"""Takes each kind of value apart for its digest: into a tag that tells kinds apart, and its contents."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ramet_guest.comparing.library_forms import by_library
from ramet_guest.comparing.pieces import (
    ValueForm,
    dictionary,
    name_of,
    of_buffer,
    of_text,
    sequence,
    tagged,
    without_addresses,
)

_PROTOCOL = 5
# Attributes that the interpreter itself adds to a class.
_NOT_OF_A_CLASS = frozenset(
    (
        "__dict__",
        "__weakref__",
        "__module__",
        "__qualname__",
        "__firstlineno__",
        "__static_attributes__",
        "__slotnames__",  # pickle's cache, made when it first takes an instance apart
        "_abc_impl",
        "__annotate_func__",
        "__annotations_cache__",
    )
)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def form_of(value: Any) -> ValueForm:
    """Takes a value apart.

    Never fails, whatever the value's own code does, except for exceptions that must not be caught.
    """
    kind = type(value)
    own = _BY_TYPE.get(kind)
    if own is not None:
        return own(value)
    try:
        found = by_library(value, kind) or by_nature(value, kind)
        return found if found is not None else reduced(value, kind)
    except Exception:
        return last_resort(value, kind)


# Code


def of_function(value: types.FunctionType) -> ValueForm:
    cells = [cell_contents(cell) for cell in value.__closure__ or ()]
    inside = (value.__code__, value.__defaults__, value.__kwdefaults__, cells, value.__dict__ or None)
    return ValueForm(tagged(type(value), value.__qualname__), iter(inside))


def cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return None


def of_code(code: types.CodeType) -> ValueForm:
    """Leaves out file and lines: the same function in another cell is the same function."""
    inside = (
        code.co_code,
        code.co_consts,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        getattr(code, "co_exceptiontable", b""),
    )
    return ValueForm(tagged(type(code), code.co_name), iter(inside))


def of_method(value: types.MethodType) -> ValueForm:
    return ValueForm(tagged(type(value)), iter((value.__func__, value.__self__)))


def of_builtin(value: Any) -> ValueForm:
    owner = getattr(value, "__self__", None)
    inside = () if owner is None or isinstance(owner, types.ModuleType) else (owner,)
    return ValueForm(tagged(type(value), value.__qualname__, getattr(value, "__module__", "")), iter(inside))


def of_module(value: types.ModuleType) -> ValueForm:
    return ValueForm(tagged(type(value), value.__name__), iter(()))


def of_class(value: type) -> ValueForm:
    """Takes classes defined in cells apart; names those of modules."""
    tag = tagged(type(value), name_of(value))
    if value.__module__ != "__main__":
        return ValueForm(tag, iter(()))
    names = {name: inside for name, inside in vars(value).items() if name not in _NOT_OF_A_CLASS}
    bases = [name_of(base) if base.__module__ != "__main__" else base for base in value.__bases__]
    return ValueForm(tag, iter((bases, names)))


def of_wrapper(value: Any) -> ValueForm:
    return ValueForm(tagged(type(value)), iter((value.__func__,)))


def of_property(value: property) -> ValueForm:
    return ValueForm(tagged(type(value)), iter((value.fget, value.fset, value.fdel, value.__doc__)))


def of_slot(value: Any) -> ValueForm:
    return ValueForm(tagged(type(value), value.__qualname__), iter(()))


def of_generator(value: Any) -> ValueForm:
    """Includes how far the generator has run, and its variables."""
    prefix = next(name for name in ("gi", "cr", "ag") if hasattr(value, f"{name}_frame"))
    frame = getattr(value, f"{prefix}_frame")
    inside = () if frame is None else (frame.f_lasti, dict(frame.f_locals))
    return ValueForm(tagged(type(value), value.__qualname__), iter((getattr(value, f"{prefix}_code"), *inside)))


_BY_TYPE: dict[type, Callable[[Any], ValueForm]] = {
    list: lambda value: ValueForm(b"list", sequence(iter(value))),
    tuple: lambda value: ValueForm(b"tuple", sequence(iter(value))),
    dict: lambda value: ValueForm(b"dict%d;" % len(value), dictionary(value)),
    set: lambda value: ValueForm(b"set", iter(value), unordered=True),
    frozenset: lambda value: ValueForm(b"frozenset", iter(value), unordered=True),
    str: lambda value: ValueForm(b"str", of_text(value)),
    bytes: lambda value: ValueForm(b"bytes", of_buffer(value)),
    bytearray: lambda value: ValueForm(b"bytearray", of_buffer(value)),
    pickle.PickleBuffer: lambda value: ValueForm(b"buffer", of_buffer(value.raw())),
    types.FunctionType: of_function,
    types.CodeType: of_code,
    types.MethodType: of_method,
    types.BuiltinFunctionType: of_builtin,
    types.ModuleType: of_module,
    staticmethod: of_wrapper,
    classmethod: of_wrapper,
    property: of_property,
    types.MemberDescriptorType: of_slot,
    types.GetSetDescriptorType: of_slot,
    types.WrapperDescriptorType: of_slot,
    types.MethodDescriptorType: of_slot,
    types.GeneratorType: of_generator,
    types.CoroutineType: of_generator,
    types.AsyncGeneratorType: of_generator,
}


# Everything else


def by_nature(value: Any, kind: type) -> ValueForm | None:
    """Takes apart values that pickle refuses or would change: by identity, state or attributes.

    Returns None for others.
    """
    if issubclass(kind, type):
        return of_class(value)
    if issubclass(kind, types.ModuleType):
        return of_module(value)
    if kind in _LOCKS:
        return ValueForm(tagged(kind, "unlocked" if "unlocked" in repr(value) else "locked"), iter(()))
    if issubclass(kind, threading.Thread):
        return ValueForm(tagged(kind, value.name, value.daemon, value.is_alive()), iter(()))
    if issubclass(kind, weakref.ref):
        return ValueForm(tagged(kind), iter((value(),)))
    if issubclass(kind, io.IOBase) and not issubclass(kind, (io.BytesIO, io.StringIO)):
        return ValueForm(
            tagged(kind, getattr(value, "name", ""), getattr(value, "mode", ""), *position(value)), iter(())
        )
    if type(getattr(kind, "__getstate__", None)) is types.FunctionType and is_plain(kind):
        return ValueForm(tagged(kind), attributes_of(value, kind))
    return None


def is_plain(kind: Any) -> bool:
    return kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__


def attributes_of(value: Any, kind: type) -> Iterator[Any]:
    """Yields attributes as pickle would, but ignores `__getstate__`: that of matplotlib's objects changes them."""
    for base, items in _ITEMS_OF.items():
        if issubclass(kind, base):
            yield from sequence(items(value))
    yield (
        object.__getattribute__(value, "__dict__") if hasattr(kind, "__dictoffset__") and kind.__dictoffset__ else None
    )
    for name, slot in slots_of(kind):
        try:
            yield (name, slot.__get__(value, kind))
        except AttributeError:
            pass  # the slot is not set


def slots_of(kind: type) -> list[tuple[str, Any]]:
    found = [(name, slot) for base in kind.__mro__ for name, slot in vars(base).items()]
    return [(name, slot) for name, slot in found if type(slot) is types.MemberDescriptorType]


_ITEMS_OF: dict[type, Callable[[Any], Iterator[Any]]] = {
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: lambda value: iter((set(set.__iter__(value)),)),
    frozenset: lambda value: iter((frozenset(frozenset.__iter__(value)),)),
    dict: lambda value: iter(dict.items(value)),
    str: lambda value: iter((str.__str__(value),)),
    bytes: lambda value: iter((bytes(memoryview(value)),)),
    int: lambda value: iter((int.__index__(value),)),
    float: lambda value: iter((float.__float__(value),)),
}


def position(file: Any) -> tuple[object, ...]:
    if file.closed:
        return ("closed",)
    try:
        # Asks the descriptor: asking the file itself would flush its buffer.
        return (os.lseek(file.fileno(), 0, os.SEEK_CUR),)
    except (OSError, ValueError):
        return ()


def reduced(value: Any, kind: type) -> ValueForm:
    """Takes a value apart as pickle would, one level deep."""
    reduce = copyreg.dispatch_table.get(kind)
    own: Any = kind.__reduce_ex__
    found: Any = reduce(value) if reduce is not None else own(value, _PROTOCOL)
    if type(found) is str:
        return ValueForm(tagged(kind, found), iter(()))
    function, arguments, *rest = found
    state, items, pairs = (*rest[:3], None, None, None)[:3]
    return ValueForm(tagged(kind), reduced_children(function, arguments, state, items, pairs))


def reduced_children(function: Any, arguments: Any, state: Any, items: Any, pairs: Any) -> Iterator[Any]:
    # Refer to classes and functions by name here: an object does not differ because its class was given a new method.
    yield by_name(function)
    yield tuple(map(by_name, arguments)) if type(arguments) is tuple else arguments
    yield state
    if items is not None:
        yield from sequence(items)
    if pairs is not None:
        yield from sequence(pairs)


def by_name(value: Any) -> Any:
    return name_of(value) if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) else value


def last_resort(value: Any, kind: type) -> ValueForm:
    """Handles values that can be neither pickled nor recognised: type and attributes, or else the repr."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:
        attributes = None
    if type(attributes) is dict:
        return ValueForm(tagged(kind), iter((attributes,)))
    try:
        return ValueForm(tagged(kind, without_addresses(repr(value))[:1000]), iter(()))
    except Exception:
        return ValueForm(tagged(kind), iter(()))
