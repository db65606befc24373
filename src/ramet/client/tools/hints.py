"""Translates type hints into forms: schema, test and conversion.

str int float bool None Any          as they are
list tuple set Sequence dict ...     of any of these
Optional, Union, Literal, Enum       one of several
TypedDict, dataclass, NamedTuple     an object with these fields
pydantic models                      as pydantic describes them
datetime, date, time, UUID, Path     a string
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Set
from enum import Enum
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ramet.client.tools import forms
from ramet.client.tools.forms import ANYTHING, JsonForm, JsonSchema, NotDescribable

_SEQUENCES: Mapping[object, Callable[[Any], object]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    collections.abc.Set: frozenset,
    collections.abc.MutableSet: set,
}
_MAPPINGS = frozenset((dict, collections.abc.Mapping, collections.abc.MutableMapping))
_QUALIFIERS = (typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Required))


class HintTranslator:
    """Translates the hints of one function. Classes that contain themselves become ``definitions`` of its schema."""

    def __init__(self) -> None:
        self.definitions: dict[str, JsonSchema] = {}
        self._open: dict[type, str] = {}  # classes that are being translated, and the names of their definitions
        self._recursive: set[type] = set()
        self._forms: dict[type, JsonForm] = {}  # forms of recursive classes that are translated

    def form(self, hint: object) -> JsonForm:
        """Return the form of a hint. Raises NotDescribable."""
        try:
            known = forms.PLAIN.get(hint) or forms.TEXTS.get(hint)
        except TypeError:
            known = None  # not hashable, so it is not in these tables
        if known is not None:
            return known
        origin = get_origin(hint)
        if origin is Annotated:
            inner, *notes = get_args(hint)
            return _described(self.form(inner), notes)
        if origin is Union or origin is types.UnionType:
            return forms.one_of([self.form(option) for option in get_args(hint)])
        if origin is Literal:
            return forms.literal(get_args(hint))
        if origin in _QUALIFIERS:
            return self.form(get_args(hint)[0])
        if (supertype := getattr(hint, "__supertype__", None)) is not None:
            return self.form(supertype)  # a NewType
        if isinstance(hint, typing.TypeVar):
            return self.form(hint.__bound__) if hint.__bound__ is not None else ANYTHING
        if type(hint).__name__ == "TypeAliasType" and hasattr(hint, "__value__"):
            return self.form(hint.__value__)  # `type X = ...`, since Python 3.12
        return self._container(origin or hint, get_args(hint)) or self._class(hint)

    def _container(self, kind: object, arguments: tuple[object, ...]) -> JsonForm | None:
        try:
            make = _SEQUENCES.get(kind)
        except TypeError:
            raise NotDescribable(f"{kind!r:.80} is not a type") from None
        if make is not None:
            return forms.array(self.form(arguments[0]) if arguments else ANYTHING, make)
        if kind is tuple:
            if not arguments:
                return forms.array(ANYTHING, tuple)
            if len(arguments) == 2 and arguments[1] is Ellipsis:
                return forms.array(self.form(arguments[0]), tuple)
            return forms.fixed_array([self.form(one) for one in arguments if one != ()])
        if kind in _MAPPINGS:
            if arguments and arguments[0] not in (str, Any):
                raise NotDescribable(f"a mapping has keys of type {_name(arguments[0])}, but JSON only has string keys")
            return forms.mapping(self.form(arguments[1]) if arguments else ANYTHING)
        return None

    def _class(self, hint: object) -> JsonForm:
        if not isinstance(hint, type):
            hint = get_origin(hint) or hint  # a generic class of the user: its parameters are ignored
        if not isinstance(hint, type):
            raise NotDescribable(f"{_name(hint)} has no counterpart in JSON")
        if issubclass(hint, Enum):
            return forms.enumeration(hint)
        if issubclass(hint, PurePath) or hint.__name__ == "PathLike":
            return forms.text(hint if issubclass(hint, PurePath) else Path)
        if hasattr(hint, "model_json_schema") and hasattr(hint, "model_validate"):
            return self._model(hint)
        if issubclass(hint, dict) and hasattr(hint, "__optional_keys__"):
            return self._record(hint, _optional_keys(hint), None)  # a TypedDict
        if dataclasses.is_dataclass(hint):
            optional = {one.name for one in dataclasses.fields(hint) if not _is_required(one)}
            ignored = {one.name for one in dataclasses.fields(hint) if not one.init}
            return self._record(hint, optional, lambda named: hint(**named), ignored)
        if issubclass(hint, tuple) and hasattr(hint, "_field_defaults"):
            return self._record(hint, set(hint._field_defaults), lambda named: hint(**named))
        raise NotDescribable(f"{_name(hint)} has no counterpart in JSON")

    def _record(
        self,
        kind: type,
        optional: Set[str],
        make: Callable[[dict[str, object]], object] | None,
        ignored: Set[str] = frozenset(),
    ) -> JsonForm:
        """Return the form of a class with named fields. A class that contains itself refers to itself by name."""
        if kind in self._forms:
            return self._forms[kind]
        if kind in self._open:
            self._recursive.add(kind)
            reference = {"$ref": f"#/$defs/{self._open[kind]}"}
            return JsonForm(
                reference,
                "dict",
                lambda value: self._forms[kind].fits(value),
                lambda value: self._forms[kind].read(value),
            )
        self._open[kind] = self._free_name(kind.__name__)
        try:
            hints = type_hints(kind)
            fields = {name: self.form(hint) for name, hint in hints.items() if _is_field(name, hint, ignored)}
        finally:
            name = self._open.pop(kind)
        required = [field for field in fields if field not in optional]
        schema: JsonSchema = {
            "type": "object",
            "properties": {field: form.schema for field, form in fields.items()},
            "required": required,
            "additionalProperties": False,
        }
        certain = all(form.certain for form in fields.values())
        form = JsonForm(schema, "dict", forms.fits_fields(fields, required), forms.reads_fields(fields, make), certain)
        if kind in self._recursive:
            self.definitions[name] = schema
            form = self._forms[kind] = dataclasses.replace(form, schema={"$ref": f"#/$defs/{name}"})
        return form

    def _model(self, model: Any) -> JsonForm:
        """Return the form of a pydantic model, which validates values itself."""
        try:
            schema: JsonSchema = model.model_json_schema()
        except Exception as error:
            raise NotDescribable(f"pydantic cannot describe {_name(model)}: {error}") from None
        inside = schema.pop("$defs", {})
        for name, definition in inside.items():
            if self.definitions.setdefault(name, definition) != definition:
                raise NotDescribable(f"there are two different classes {name}")
        return JsonForm(schema, "dict", lambda value: False, model.model_validate, certain=False)

    def _free_name(self, name: str) -> str:
        taken = {*self.definitions, *self._open.values()}
        return name if name not in taken else f"{name}_{len(taken)}"


def type_hints(thing: object) -> dict[str, object]:
    """Return the hints of a function or class, with their Annotated notes. Raises NotDescribable."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception as error:
        # A name that exists only for type checkers, or only inside the function where it is used.
        raise NotDescribable(f"its type hints cannot be resolved: {error}") from None


def return_annotation(hint: object) -> str:
    """Return the text of a return annotation, which is only shown to code in a sandbox."""
    try:
        return HintTranslator().form(hint).annotation
    except NotDescribable:
        return _name(hint)


def _described(form: JsonForm, notes: list[object]) -> JsonForm:
    """Add the description in ``Annotated``: a string, or the description of an object such as pydantic's Field."""
    for note in notes:
        description = (
            note if isinstance(note, str) else getattr(note, "description", getattr(note, "documentation", None))
        )
        if isinstance(description, str) and description:
            return dataclasses.replace(form, schema={**form.schema, "description": description})
    return form


def _optional_keys(kind: type) -> set[str]:
    """Return the optional keys of a TypedDict. ``__optional_keys__`` misses NotRequired in hints that are strings."""
    optional = set(getattr(kind, "__optional_keys__", ()))
    for name, hint in type_hints(kind).items():
        if get_origin(hint) is typing.NotRequired:
            optional.add(name)
        elif get_origin(hint) is typing.Required:
            optional.discard(name)
    return optional


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_field(name: str, hint: object, ignored: Set[str]) -> bool:
    return name not in ignored and get_origin(hint) is not typing.ClassVar and hint is not dataclasses.KW_ONLY


def _name(hint: object) -> str:
    if isinstance(hint, type):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("collections.abc.", "")
