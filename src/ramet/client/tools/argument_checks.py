"""Checks the arguments of a tool call against the tool's JSON schema, before any code of the host runs.

Schemas are never fetched. The library ``jsonschema`` is imported with the first check: programs without tools, and
tools whose arguments fit their type hints, do without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from ramet.client.tools.forms import JsonSchema
from ramet.client.tools.tool import WrongArguments

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_ERRORS_AT_MOST = 20  # among these, the message names the most helpful one
_SHOWN_CHARACTERS = 200
# Keywords whose values are data or names, not schemas.
_NOT_SCHEMAS = frozenset(("const", "enum", "default", "examples", "required", "dependentRequired"))


class BadSchema(Exception):
    """A JSON schema is wrong or cannot be used here; the message says why."""


class SchemaValidator:
    """Validates against one schema. Safe to use from several threads."""

    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        self._validator: Validator | None = None

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise WrongArguments if the arguments do not fit the schema."""
        from jsonschema.exceptions import best_match

        validator = self._validator or self._make_validator()
        try:
            # Errors are found one by one; a hostile caller may have made a million of them.
            error = best_match(iter(list(islice(validator.iter_errors(arguments), _ERRORS_AT_MOST))))
        except RecursionError:
            raise WrongArguments("the arguments are nested too deeply") from None
        except Exception as failed:
            # For instance a reference that leads nowhere, which ``prove`` cannot find in schemas with an $id.
            raise WrongArguments(f"the schema of the tool cannot be applied: {failed}") from None
        if error is not None:
            place = "".join(_step(part) for part in error.absolute_path).lstrip(".")
            message = error.message
            if len(message) > _SHOWN_CHARACTERS * 2:
                message = f"{message[:_SHOWN_CHARACTERS]} ... {message[-_SHOWN_CHARACTERS:]}"
            raise WrongArguments(f"{place}: {message}" if place else message)

    def prove(self) -> None:
        """Raise BadSchema if the schema, which a user wrote, is not a JSON schema."""
        from jsonschema.exceptions import SchemaError

        try:
            type(self._make_validator()).check_schema(self._schema)
        except SchemaError as error:
            place = "".join(_step(part) for part in error.absolute_path).lstrip(".")
            raise BadSchema(f"{place}: {error.message}" if place else error.message) from None
        except RecursionError:
            raise BadSchema("the schema is nested too deeply") from None
        _prove_references(self._schema)
        _prove_patterns(self._schema)

    def _make_validator(self) -> Validator:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import extend, validator_for
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

        # With this registry, because the default one fetches schemas that it does not know.
        kind = validator_for(self._schema, default=Draft202012Validator)
        kind = extend(kind, {"uniqueItems": _unique_items})  # type: ignore[no-untyped-call]
        self._validator = kind(self._schema, registry=REGISTRY)
        return self._validator


def _unique_items(validator: Validator, unique: object, items: object, schema: object) -> Iterator[Exception]:
    """Check uniqueItems in linear time. The library compares each item with all others, and there may be a million."""
    from jsonschema.exceptions import ValidationError

    if unique and isinstance(items, list) and len(set(map(_written, items))) < len(items):
        yield ValidationError(f"{items!r} has non-unique elements")


def _written(value: Any) -> str:
    """Write a value so that values that are equal in JSON, where 1 and 1.0 are one number, are written alike."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(name)}:{_written(one)}' for name, one in sorted(value.items()))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _step(part: object) -> str:
    return f"[{part}]" if isinstance(part, int) else f".{part}"


def _prove_references(schema: JsonSchema) -> None:
    """Check that each reference leads into this schema. Schemas with an $id or anchors are checked in use only."""
    from jsonschema_specifications import REGISTRY

    inner = list(_schemas(schema))
    if any("$id" in one or "$anchor" in one or "$dynamicAnchor" in one for one in inner):
        return
    for one in inner:
        reference = one.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            if not _leads_somewhere(schema, reference[1:]):
                raise BadSchema(f"the reference {reference!r:.200} cannot be found in the schema")
        elif isinstance(reference, str) and reference.partition("#")[0] not in REGISTRY:
            raise BadSchema(
                f"the reference {reference!r:.200} points outside the schema; external schemas are not fetched"
            )


def _leads_somewhere(schema: object, pointer: str) -> bool:
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict) and name in schema:
            schema = schema[name]
        elif isinstance(schema, list) and name.isdigit() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return False
    return pointer == "" or pointer.startswith("/")


def _prove_patterns(schema: JsonSchema) -> None:
    for one in _schemas(schema):
        named = one.get("patternProperties")
        for pattern in (one.get("pattern"), *(named if isinstance(named, dict) else ())):
            try:
                re.compile(pattern if isinstance(pattern, str) else "")
            except re.error as error:
                raise BadSchema(f"the pattern {pattern!r:.200} is not a regular expression: {error}") from None


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a schema that may be schemas themselves."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += [inner for name, inner in one.items() if name not in _NOT_SCHEMAS]
        elif isinstance(one, list):
            left += one
