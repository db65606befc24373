"""Names of tools that code has used for values of its own: whose they are, and when the tool is back."""

from __future__ import annotations

import pytest

from tests.behaviour.calling import fetch_sales_data, fetch_slowly, ok, printed
from tests.behaviour.faces import MakeSandbox


@pytest.mark.every_face
def test_tools_that_are_given_again_are_back_under_their_names(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_slowly, fetch_sales_data])
    ok(sandbox.run_code("fetch_slowly = 3\ndel fetch_sales_data"))
    assert printed(sandbox, "print(fetch_slowly, 'fetch_sales_data' in globals())") == "3 False"
    sandbox.set_tools([fetch_slowly, fetch_sales_data])
    assert printed(sandbox, "print(fetch_slowly('A'), fetch_sales_data('B')['sku'])") == "a B"


def test_so_is_one_that_stays_while_another_is_replaced(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_slowly])
    ok(sandbox.run_code("fetch_slowly = ToolError = None"))
    sandbox.set_tools([fetch_slowly, fetch_sales_data])
    assert printed(sandbox, "print(fetch_slowly('A'), ToolError.__name__)") == "a ToolError"


def test_a_function_in_the_place_of_a_tool_stays(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_slowly])
    ok(sandbox.run_code("inner = fetch_slowly\ndef fetch_slowly(sku):\n    return inner(sku) + '!'"))
    sandbox.set_tools([fetch_slowly])
    assert printed(sandbox, "print(fetch_slowly('A'))") == "a!"


def test_a_copy_has_the_values_of_its_parent(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_slowly])
    ok(sandbox.run_code("fetch_slowly = 3"))
    (child,) = sandbox.fork(1)
    try:
        assert printed(child, "print(fetch_slowly)") == "3"
    finally:
        child.close()
