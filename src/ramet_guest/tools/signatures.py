"""A tool's name in Python code, its signature and its docstring."""

from __future__ import annotations

import keyword
from inspect import Parameter, Signature
from textwrap import indent
from typing import Any

from ramet_guest.tools.schemas import properties_of, required_by, types_of

_TYPES = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": None,
}
_BUILTIN = {kind.__name__: kind for kind in (str, int, float, bool, list, dict, tuple, set, bytes, object)}


class WrittenAnnotation(str):
    """An annotation that is known only as text. Its repr has no quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[object, ...]:
        return str, (str(self),)


def python_name(name: str) -> str:
    plain = name.replace("-", "_")
    if plain[:1].isdigit():
        plain = f"_{plain}"
    return f"{plain}_" if keyword.iskeyword(plain) else plain


def signature_of(given: dict[str, Any]) -> Signature:
    """Builds the signature in the given order, or in the schema's.

    `**` takes names that no Python parameter can have.
    """
    told = given.get("parameters")
    parameters = from_schema(given["input_schema"]) if told is None else [from_told(one) for one in told]
    shown: list[Parameter] = []
    kind: Any = Parameter.POSITIONAL_OR_KEYWORD
    for name, default, annotation in parameters:
        if not name.isidentifier() or keyword.iskeyword(name):
            continue
        if default is Parameter.empty and shown and shown[-1].default is not Parameter.empty:
            kind = Parameter.KEYWORD_ONLY  # a required parameter after an optional one can only be given by name
        shown.append(Parameter(name, kind, default=default, annotation=annotation))
    if len(shown) < len(parameters) or (not parameters and given["input_schema"].get("additionalProperties")):
        others = "arguments"
        while any(others == one.name for one in shown):
            others += "_"
        shown.append(Parameter(others, Parameter.VAR_KEYWORD))
    returns = given.get("returns")
    return Signature(shown, return_annotation=Signature.empty if returns is None else annotation_of(returns))


def from_told(one: dict[str, Any]) -> tuple[str, Any, Any]:
    default = Parameter.empty if one["required"] else one.get("default")
    annotation = one.get("annotation")
    return one["name"], default, Parameter.empty if annotation is None else annotation_of(annotation)


def from_schema(schema: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns name, default and annotation of each parameter in a schema."""
    required = required_by(schema)
    found = []
    for name, inside in properties_of(schema).items():
        default = Parameter.empty if name in required else inside.get("default")
        names = [_TYPES[kind] for kind in _TYPES if kind in types_of(inside, schema)]
        annotation: Any = Parameter.empty
        if len(names) == 1:
            annotation = names[0]
        elif names:
            annotation = WrittenAnnotation(" | ".join("None" if kind is None else kind.__name__ for kind in names))
        found.append((name, default, annotation))
    return found


def annotation_of(text: str) -> Any:
    return None if text == "None" else _BUILTIN.get(text) or WrittenAnnotation(text)


def document(given: dict[str, Any]) -> str:
    """Joins the description with the schema's texts on parameters, unless the description contains them."""
    text: str = given["description"]
    lines = []
    for name, inside in properties_of(given["input_schema"]).items():
        about = inside.get("description")
        if isinstance(about, str) and about.strip() and about.strip() not in text:
            lines.append(f"{name}: {indent(about.strip(), '    ').strip()}")
    if not lines:
        return text
    return "\n\n".join((text.rstrip(), "Parameters:\n" + indent("\n".join(lines), "    "))).lstrip()
