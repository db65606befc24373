"""Arguments of a tool against its JSON schema, before anything of the host runs. Nothing is ever fetched for it.

The library is imported when a schema is first asked: a program without tools does without it.
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

_ERRORS_AT_MOST = 20  # looked at, to tell of the one that helps most
_SHOWN_CHARACTERS = 200
# Their values are data or names, and no schemas.
_NOT_SCHEMAS = frozenset(("const", "enum", "default", "examples", "required", "dependentRequired"))


class BadSchema(Exception):
    """Not a JSON schema, or one that cannot be used here; says why."""


class SchemaCheck:
    """One schema. Safe to use from several threads."""

    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        self._validator: Validator | None = None

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise WrongArguments for what does not fit."""
        from jsonschema.exceptions import best_match

        validator = self._validator or self._made()
        try:
            # The first error is there at once; a hostile caller may have made a million of them.
            error = best_match(iter(list(islice(validator.iter_errors(arguments), _ERRORS_AT_MOST))))
        except RecursionError:
            raise WrongArguments("the arguments are nested too deeply") from None
        except Exception as failed:
            # A reference that leads nowhere, for instance, where no look at the schema alone could find it.
            raise WrongArguments(f"the schema of the tool cannot be applied: {failed}") from None
        if error is not None:
            place = "".join(_step(part) for part in error.absolute_path).lstrip(".")
            told = error.message
            if len(told) > _SHOWN_CHARACTERS * 2:
                told = f"{told[:_SHOWN_CHARACTERS]} ... {told[-_SHOWN_CHARACTERS:]}"
            raise WrongArguments(f"{place}: {told}" if place else told)

    def prove(self) -> None:
        """Raise BadSchema for what is no schema: for one that somebody wrote."""
        from jsonschema.exceptions import SchemaError

        try:
            type(self._made()).check_schema(self._schema)
        except SchemaError as error:
            place = "".join(_step(part) for part in error.absolute_path).lstrip(".")
            raise BadSchema(f"{place}: {error.message}" if place else error.message) from None
        except RecursionError:
            raise BadSchema("the schema is nested too deeply") from None
        _prove_references(self._schema)
        _prove_patterns(self._schema)

    def _made(self) -> Validator:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import extend, validator_for
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

        # With a registry of our own: the default one fetches what it does not know.
        kind = validator_for(self._schema, default=Draft202012Validator)
        kind = extend(kind, {"uniqueItems": _unique_items})  # type: ignore[no-untyped-call]
        self._validator = kind(self._schema, registry=REGISTRY)
        return self._validator


def _unique_items(validator: Validator, wanted: object, items: object, schema: object) -> Iterator[Exception]:
    """As the library has it, but not with each item compared to all others: a caller may have sent a million."""
    from jsonschema.exceptions import ValidationError

    if wanted and isinstance(items, list) and len(set(map(_written, items))) < len(items):
        yield ValidationError(f"{items!r} has non-unique elements")


def _written(value: Any) -> str:
    """The same for what is equal in JSON, where 1 and 1.0 are one number."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(name)}:{_written(one)}' for name, one in sorted(value.items()))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _step(part: object) -> str:
    return f"[{part}]" if isinstance(part, int) else f".{part}"


def _prove_references(schema: JsonSchema) -> None:
    """Each reference leads to something that is here. Schemas with addresses of their own are left to their use."""
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
    """All objects in a schema that may be schemas themselves."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += [inner for name, inner in one.items() if name not in _NOT_SCHEMAS]
        elif isinstance(one, list):
            waiting += one
