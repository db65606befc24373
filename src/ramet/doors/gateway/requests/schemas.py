"""JSON schemas of tools, as far as the gateway reads them: function signatures, and recursive references."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from typing import Any

_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}
# Bounds for schemas that grow exponentially when their references are followed.
_PARAMETERS_SHOWN = 100
_VARIANTS_SHOWN = 6
_DEEP = 4


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Whether following its references leads back to a reference that is being followed."""
    return _comes_back(schema, schema, (), set())


def _comes_back(root: Mapping[str, Any], part: object, following: tuple[str, ...], harmless: set[str]) -> bool:
    """``harmless``: references that were followed to their ends already."""
    if isinstance(part, list):
        return any(_comes_back(root, one, following, harmless) for one in part)
    if not isinstance(part, dict):
        return False
    reference = part.get("$ref")
    if isinstance(reference, str) and reference not in harmless:
        if reference in following:
            return True
        found = _find(root, reference)
        if found is not None and _comes_back(root, found, (*following, reference), harmless):
            return True
        harmless.add(reference)
    # Skip definitions: only those that a reference names matter.
    inner = (value for name, value in part.items() if name not in ("$ref", "$defs", "definitions"))
    return any(_comes_back(root, one, following, harmless) for one in inner)


def _find(root: Mapping[str, Any], reference: str) -> object:
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None  # in another document, which is not followed
    found: object = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


def python_name(tool: str) -> str:
    """The name of a tool's function in code."""
    name = re.sub(r"\W", "_", tool, flags=re.ASCII)
    if name[:1].isdigit():
        name = "_" + name
    return name + "_" if keyword.iskeyword(name) else name


def signature(tool: str, schema: Mapping[str, Any]) -> str:
    """The tool as a Python function with keyword arguments, required ones first, as the sandbox defines it."""
    properties = schema.get("properties")
    required = schema.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    parameters = []
    if isinstance(properties, dict):
        inner = sorted(properties.items(), key=lambda item: item[0] not in needed)
        for name, one in inner[:_PARAMETERS_SHOWN]:
            annotation = type_text(schema, one)
            if name in needed:
                parameters.append(f"{name}: {annotation}")
            else:
                parameters.append(f"{name}: {annotation} = {_default(one)}")
        if len(inner) > _PARAMETERS_SHOWN:
            parameters.append("...")
    return f"async def {python_name(tool)}({', '.join(parameters)}) -> str"


def _default(schema: object) -> str:
    return repr(schema["default"])[:60] if isinstance(schema, dict) and "default" in schema else "..."


def type_text(root: Mapping[str, Any], schema: object, depth: int = 0) -> str:
    """A short Python annotation for a schema, for a model to read."""
    if not isinstance(schema, dict) or depth > _DEEP:
        return "object"
    if isinstance(reference := schema.get("$ref"), str):
        return type_text(root, _find(root, reference), depth + 1)
    if isinstance(values := schema.get("enum"), list) and 0 < len(values) <= _VARIANTS_SHOWN:
        return f"Literal[{', '.join(map(repr, values))}]"
    variants = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(variants, list) and 0 < len(variants) <= _VARIANTS_SHOWN:
        return " | ".join(dict.fromkeys(type_text(root, one, depth + 1) for one in variants))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_TYPES.get(str(one), "object") for one in kind)
    if kind == "array" and "items" in schema:
        return f"list[{type_text(root, schema['items'], depth + 1)}]"
    return _TYPES.get(str(kind), "object")
