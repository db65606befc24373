"""The description of the routes is the routes: every one, no other, and in itself well formed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from ramet.doors.http.documentation import openapi, pages
from ramet.doors.http.exposed import requests
from ramet.doors.http.requests import application
from ramet.doors.http.routes.table import ROUTES

# Answered before the routes are looked at: it is what the SDK calls, thousands of times.
CALL = ("POST", "/v1/call")
# So is this, which is passed on with any method.
EXPOSED = {(method, requests.TEMPLATE) for method in ("GET", "POST", "PUT", "DELETE")}
REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "http.md"


def in_code() -> set[tuple[str, str]]:
    return {(method, path) for method, path, _ in ROUTES} | {CALL} | EXPOSED


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in openapi.document()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def resolve(value: Any) -> Any:
    while isinstance(value, dict) and "$ref" in value:
        found: Any = openapi.document()
        for part in value["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        value = found
    return value


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_route_of_the_code_is_described_and_no_other() -> None:
    assert openapi.described_routes() == in_code()


def test_every_route_is_in_the_reference() -> None:
    text = REFERENCE.read_text()
    missing = [f"{method} {path}" for method, path in sorted(in_code()) if f"{method} `{path}`" not in text]
    assert not missing


def test_every_reference_leads_somewhere() -> None:
    for reference in references(openapi.document()):
        assert resolve({"$ref": reference}) is not None, reference


def test_every_name_in_a_path_is_a_parameter() -> None:
    for _, path, operation in operations():
        described = {resolve(one)["name"] for one in operation.get("parameters", []) if resolve(one)["in"] == "path"}
        assert described == set(re.findall(r"{(\w+)}", path)), path


def test_every_operation_has_its_own_id_a_summary_and_a_known_tag() -> None:
    tags = {tag["name"] for tag in openapi.document()["tags"]}
    found = list(operations())
    assert len({operation["operationId"] for _, _, operation in found}) == len(found)
    for _, path, operation in found:
        assert operation["summary"], path
        assert set(operation["tags"]) <= tags


def test_what_is_open_to_everybody_is_what_needs_no_key() -> None:
    described = {path for _, path, operation in operations() if operation.get("security") == [{}]}
    assert described == application._PUBLIC


def contents(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from resolve(operation.get("requestBody", {})).get("content", {}).values()
    for response in operation["responses"].values():
        yield from resolve(response).get("content", {}).values()


def test_every_example_is_what_its_schema_says() -> None:
    components = openapi.document()["components"]
    for method, path, operation in operations():
        for content in contents(operation):
            if "example" in content:
                schema = {**content["schema"], "components": components}
                errors = [str(error) for error in jsonschema_rs.iter_errors(schema, content["example"])]
                assert not errors, f"{method} {path}: {errors}"


@pytest.mark.parametrize("kind", ["script", "style"])
def test_the_page_is_one_file_that_loads_nothing(kind: str) -> None:
    page = pages.page().decode()
    assert page.count(f"<{kind}>") == page.count(f"</{kind}>") == 1
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)
    assert not re.search(r"\son\w+\s*=", page)  # the policy forbids handlers in attributes
    assert " style=" not in page


def test_the_page_may_run_nothing_but_its_own_script() -> None:
    policy = dict(pages.page_headers())[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 2
    assert "connect-src 'self'" in policy


def test_the_page_keeps_no_key() -> None:
    page = pages.page().decode()
    assert not re.search(r"localStorage|sessionStorage|document\.cookie|indexedDB", page)
