"""Reads from a tool's JSON schema what a caller has to know about its parameters."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OF_VALUES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_REFERENCES_AT_MOST = 20


def properties_of(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the parameters by name: the required ones first, each group in the schema's order."""
    found = schema.get("properties")
    found = found if isinstance(found, dict) else {}
    required = required_by(schema)
    names = [name for name in found if name in required] + [name for name in found if name not in required]
    return {name: found[name] if isinstance(found[name], dict) else {} for name in names}


def required_by(schema: dict[str, Any]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Follows a schema's references inside its root."""
    for _ in range(_REFERENCES_AT_MOST):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for step in reference[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            break
        schema = found
    return schema


def types_of(schema: dict[str, Any], root: dict[str, Any], depth: int = 0) -> set[str]:
    """Returns the JSON types that a value may have; an empty set if any will do."""
    schema = resolved(schema, root)
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {one for one in kind if isinstance(one, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {_OF_VALUES.get(type(value), "object") for value in values}
    found: set[str] = set()
    for word in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(word)
        if isinstance(choices, list) and depth < _REFERENCES_AT_MOST:
            for choice in choices:
                one = types_of(choice, root, depth + 1) if isinstance(choice, dict) else set()
                if not one and word != "allOf":
                    return set()
                found |= one
    return found


def items_of(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of an array's items."""
    schema = resolved(schema, root)
    candidates = [schema, *(one for word in ("anyOf", "oneOf") for one in schema.get(word) or ())]
    for candidate in candidates:
        items = resolved(candidate, root).get("items") if isinstance(candidate, dict) else None
        if isinstance(items, dict):
            return items
    return {}
