"""A result as people and models read it, as a notebook shows it, and as JSON."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

from ramet import CellError, Result, RichResult, ToolCallRecord, Truncated
from ramet.integrations.results import show
from ramet.protocol import calls
from ramet.protocol.calls import Outcome, encode_outcome
from ramet.protocol.frames import FROM_ENGINE, FrameDecoder
from ramet.protocol.guest import Rich
from ramet.protocol.values.result_texts import TEXT_CHARACTERS_AT_MOST
from ramet.protocol.values.results import RichResult as Shown

PNG = b"\x89PNG picture"
ALERT = "<table><tr><td>1</td></tr></table><script>alert(1)</script>"


def result(**fields: Any) -> Result:
    usual: dict[str, Any] = {
        "stdout": "",
        "stderr": "",
        "exit_code": 0,
        "value": None,
        "results": (),
        "interrupted": False,
        "state": "kept",
        "cause": None,
        "restarted": False,
        "truncated": None,
        "background": "",
        "error": None,
        "duration_seconds": 0.5,
        "cell_id": 1,
    }
    return Result(**{**usual, **fields})


FIGURE = Shown("display", {"text/plain": "<Figure size 640x480>", "image/png": PNG})
TABLE = Shown("value", {"text/plain": "a\n0", "text/html": ALERT})


def test_printing_a_result_shows_output_value_and_error_in_this_order() -> None:
    assert str(result(stdout="hi\n", value="42", results=(Shown("value", {"text/plain": "42"}),))) == "hi\n42"
    failed = result(
        stdout="hi\n", stderr="Traceback ...\nValueError: x\n", exit_code=1, error=CellError("ValueError", "x")
    )
    assert str(failed) == "hi\nTraceback ...\nValueError: x"
    assert str(result()) == ""
    assert result().text == "(no output)"


def test_the_text_of_a_result_says_what_a_model_cannot_see() -> None:
    shown = result(results=(FIGURE, FIGURE), exit_code=130, interrupted=True, cause="timeout", error=None)
    assert shown.text.splitlines() == [
        "<Figure size 640x480>",
        "<Figure size 640x480>",
        "(2 pictures in results)",
        "(the cell timed out after 0.5 seconds)",
        "(exit code 130)",
    ]
    cut = result(stdout="x", truncated=Truncated(99, 0, "/var/tmp/ramet/output-1.stdout", None, 0))
    assert "/var/tmp/ramet/output-1.stdout" in cut.text
    assert result(exit_code=1, error=CellError("KeyError", "'a'")).text == "KeyError: 'a'"


@pytest.mark.parametrize(
    ("form", "content", "read"),
    [
        ("text/markdown", "# Totals", "# Totals"),
        ("text/latex", "$x^2$", "$x^2$"),
        ("text/html", "<b>42</b>", "<b>42</b>"),
        ("application/json", {"a": ["\u00e9"]}, '{"a": ["\u00e9"]}'),
    ],
)
def test_what_an_object_of_ipython_holds_is_read_instead_of_its_name(form: str, content: object, read: str) -> None:
    """`display(Markdown("# Totals"))` has a plain text that only says which class it is."""
    data = {"text/plain": "<IPython.core.display.Markdown object>", form: content}
    displayed = result(results=(Shown("display", data),))
    value = result(value=data["text/plain"], results=(Shown("value", data),))
    assert (displayed.text, str(displayed), value.text, show(displayed).text) == (read, read, read, read)
    assert show(value).text == f"value: {read}"
    assert result(results=(TABLE,), value="a\n0").text == "a\n0"  # a table's own text is better than its HTML
    assert result(value="<IPython.core.display.Markdown object>").text == "<IPython.core.display.Markdown object>"


@pytest.mark.parametrize(
    "fields",
    [
        {"stdout": "s" * 5_000_000},
        {"stdout": "s" * 5_000_000, "value": "v" * 1_000_000, "stderr": "e" * 1_000_000, "background": "b" * 70_000},
        {"stdout": "\n".join(map(str, range(100_000))), "value": "short", "stderr": "end of the traceback"},
    ],
)
def test_the_text_of_a_result_is_bounded_and_keeps_something_of_each_part(fields: dict[str, str]) -> None:
    text = result(**fields).text
    assert len(text) <= TEXT_CHARACTERS_AT_MOST
    assert "characters left out ..." in text
    for part in fields.values():
        assert part[:50] in text
        assert part[-50:] in text


def test_the_repr_of_a_result_is_short_whatever_it_holds() -> None:
    long = result(stdout="o" * 1_000_000, value="v" * 1_000_000, results=(FIGURE, TABLE))
    assert repr(long).startswith("<Result ok, stdout='ooo")
    assert len(repr(long)) < 300
    assert repr(result(exit_code=1, error=CellError("ValueError", "x"))) == "<Result ValueError>"
    assert (
        repr(result(exit_code=139, state="lost", cause="signal 11")) == "<Result exit code 139, signal 11, state lost>"
    )


def test_a_notebook_shows_a_picture_and_runs_no_script_of_a_sandbox() -> None:
    assert FIGURE._repr_mimebundle_() == {
        "text/plain": "<Figure size 640x480>",
        "image/png": base64.b64encode(PNG).decode(),
    }
    html = str(TABLE._repr_mimebundle_()["text/html"])
    assert html.startswith('<iframe sandbox=""')
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    # Nor does it fetch anything: an address could carry out what a sandbox without a network must keep.
    policy = unescape(html).partition('srcdoc="')[2]
    assert policy.startswith('<meta http-equiv="Content-Security-Policy" content="default-src \'none\';')
    assert "http:" not in policy.partition(">")[0]
    hostile = Shown("display", {"application/javascript": "alert(1)", "image/svg+xml": "<svg onload='alert(1)'/>"})
    bundle = hostile._repr_mimebundle_()
    assert set(bundle) == {"text/html"}
    assert str(bundle["text/html"]).startswith('<img src="data:image/svg+xml;base64,')


def test_ipython_asks_results_for_their_forms() -> None:
    formatter: Any = DisplayFormatter()
    figure, _ = formatter.format(FIGURE)
    assert figure["image/png"] == base64.b64encode(PNG).decode()
    whole, _ = formatter.format(result(stdout="hi", results=(FIGURE,)))
    assert "data:image/png" in whole["text/html"]
    assert whole["text/plain"].startswith("hi")


def test_a_notebook_shows_all_of_a_result_in_one_page_if_there_is_more_than_text() -> None:
    assert set(result(stdout="hi", value="1")._repr_mimebundle_()) == {"text/plain"}
    html = str(result(stdout="<b>hi</b>", results=(FIGURE, TABLE))._repr_mimebundle_()["text/html"])
    assert html.index("&lt;b&gt;hi") < html.index("data:image/png;base64,") < html.index("<iframe sandbox")
    assert "<script>" not in html
    assert set(result(results=(FIGURE,))._repr_mimebundle_(include={"text/plain"})) == {"text/plain"}
    assert set(result(results=(FIGURE,))._repr_mimebundle_(exclude={"text/plain"})) == {"text/html"}


def test_a_result_becomes_json_with_bytes_in_base64() -> None:
    call = ToolCallRecord("tool", {"a": 1}, 0.1, "ok")
    whole = result(
        results=(FIGURE,), tool_calls=(call,), error=CellError("E", "m"), truncated=Truncated(1, 2, None, None, 0)
    )
    told = json.loads(json.dumps(whole.to_dict()))
    assert told["results"][0]["data"]["image/png"] == {"base64": base64.b64encode(PNG).decode()}
    assert told["tool_calls"][0]["arguments"] == {"a": 1}
    assert told["error"] == {"name": "E", "message": "m"}
    assert set(told) == set(Result.__dataclass_fields__)


def read(outcome: Outcome, streamed: str | None = None) -> Result:
    return calls.read_result(next(FrameDecoder(FROM_ENGINE).feed(encode_outcome(outcome))), streamed)


def test_a_value_that_was_cut_is_told_in_truncated() -> None:
    text = b"a" * (1 << 20) + b"\n... [3951426 bytes left out]"
    rich = Rich(1, "value", None, (("text/plain", "s", len(text)),), text)
    outcome = Outcome(1, 0, "kept", stdout=b"ab", rich=(rich,))
    cut = read(outcome).truncated
    assert cut == Truncated(2, 0, None, None, 0, value_bytes=(1 << 20) + 3951426)
    assert "the value is longer" in read(outcome).text
    printed = replace(outcome, truncated=Truncated(7, 8, "/p", None, 1))
    assert read(printed).truncated == Truncated(7, 8, "/p", None, 1, value_bytes=(1 << 20) + 3951426)
    streamed = read(Outcome(1, 0, "kept"), text.decode()).truncated
    assert streamed is not None
    assert streamed.value_bytes == (1 << 20) + 3951426
    short = b"it says ... [12 bytes left out]"
    whole = Rich(1, "value", None, (("text/plain", "s", len(short)),), short)
    assert read(Outcome(1, 0, "kept", rich=(whole,))).truncated is None


def test_the_short_names_of_a_rich_result_are_those_of_its_forms() -> None:
    rich = RichResult("value", {"text/plain": "t", "application/json": {"a": 1}, "image/png": PNG})
    assert (rich.text, rich.json, rich.png, rich.html) == ("t", {"a": 1}, PNG, None)
