"""Tools of requests, and what the upstream is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.doors.gateway.requests.declarations import read_tools
from ramet.doors.gateway.requests.schemas import is_recursive, python_name, signature
from ramet.doors.gateway.requests.tool_texts import tools_for_upstream
from ramet.doors.gateway.running.cell_run import ClientTool
from ramet.doors.gateway.settings import GatewaySettings
from ramet.doors.gateway.upstream.client import base_url
from ramet.doors.gateway.upstream.credentials import upstream_betas, upstream_headers
from ramet.errors import InvalidArgument

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


@pytest.mark.parametrize(
    ("schema", "recursive"),
    [
        ({}, False),
        ({"$ref": "#"}, True),
        ({"properties": {"x": {"$ref": "#/$defs/node"}}, "$defs": {"node": NODE}}, True),
        ({"properties": {}, "$defs": {"node": NODE}}, False),
        ({"properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}, False),
        ({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}}, True),
        ({"properties": {"a": {"$ref": "https://elsewhere/schema.json"}}}, False),
        ({"properties": {"a": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"items": {"$ref": "#/$defs/a~1b"}}}}, True),
    ],
)
def test_schemas_that_lead_into_themselves_are_found(schema: dict[str, Any], recursive: bool) -> None:
    assert is_recursive(schema) is recursive


def test_a_schema_of_many_references_is_looked_through_once() -> None:
    definitions = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 3} for n in range(60)}
    assert not is_recursive({"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {**definitions, "d60": {}}})


@pytest.mark.parametrize(
    ("tool", "name"),
    [("get_weather", "get_weather"), ("get-weather", "get_weather"), ("2nd", "_2nd"), ("import", "import_")],
)
def test_tools_have_names_that_python_can_say(tool: str, name: str) -> None:
    assert python_name(tool) == name


def test_a_signature_has_required_parameters_first() -> None:
    schema = {
        "properties": {
            "unit": {"enum": ["C", "F"], "default": "C"},
            "places": {"type": "array", "items": {"type": "string"}},
            "depth": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "where": {"$ref": "#/$defs/where"},
        },
        "required": ["places", "where"],
        "$defs": {"where": {"type": "object"}},
    }
    assert signature("get-weather", schema) == (
        "async def get_weather(places: list[str], where: dict, "
        "unit: Literal['C', 'F'] = 'C', depth: int | None = ...) -> str"
    )


def test_the_description_tells_of_every_callable_tool() -> None:
    schema = {"properties": {"sku": {"type": "string", "description": "which\nproduct"}}, "required": ["sku"]}
    tool = ClientTool("sales", "Sales of a product.\nBy day.", schema)
    (code, *_) = tools_for_upstream("20260120", [tool])
    assert (
        "async def sales(sku: str) -> str:\n    Sales of a product.\n    By day.\n    sku: which product"
        in code["description"]
    )
    assert code["input_schema"]["required"] == ["code"]


def test_versions_of_callers_decide_where_the_entry_is_missing() -> None:
    def tool(*callers: str) -> list[dict[str, Any]]:
        return [{"name": "x", "input_schema": {}, "allowed_callers": list(callers)}]

    assert read_tools(tool("direct")).version is None
    assert read_tools(tool("code_execution_20250825")).version == "20260120"
    assert read_tools(tool("code_execution_20260120", "code_execution_20260521")).version == "20260521"
    assert read_tools(tool("code_execution_20260120")).callables[0].input_schema == {"type": "object"}


def test_ordinary_tools_stand_where_the_entry_stood() -> None:
    tools = [{"name": "a", "input_schema": {}}, {"type": "code_execution_20250522", "name": "code_execution"}]
    declared = read_tools([*tools, {"name": "b", "input_schema": {}}])
    assert [tool["name"] for tool in declared.for_upstream] == ["a", "code_execution", "b"]
    assert declared.client_names == {"a", "b"}


def test_betas_of_the_gateway_are_its_own() -> None:
    header = "code-execution-2025-08-25, some-beta,message-threads-2026-08-12,some-beta,"
    assert upstream_betas(header) == ["some-beta"]


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        ("sk-ant-api03-x", {"x-api-key": "sk-ant-api03-x"}),
        ("sk-ant-oat01-x", {"authorization": "Bearer sk-ant-oat01-x"}),
        ("other", {"x-api-key": "other", "authorization": "Bearer other"}),
    ],
)
def test_a_key_of_the_gateway_goes_where_its_kind_is_looked_for(key: str, headers: dict[str, str]) -> None:
    settings = GatewaySettings("http://x", upstream_key=key)
    found = upstream_headers(settings, {"x-api-key": "of the client", "cookie": "c", "anthropic-version": "1"})
    assert found == {"anthropic-version": "1", **headers}
    assert key not in repr(settings)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://example.org/v1/", "https://example.org"),
        ("https://example.org/api/anthropic", "https://example.org/api/anthropic"),
    ],
)
def test_urls_of_upstreams(text: str, url: str) -> None:
    assert base_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "example.org", "ftp://x", "http://", "http://x:port", "http://x?y=z", "http://x#y"]
)
def test_what_is_no_url_of_an_upstream(text: str) -> None:
    with pytest.raises(InvalidArgument, match="upstream"):
        base_url(text)
