"""The value of a last expression, and what is displayed, in every form it has."""

from __future__ import annotations

import struct
import zlib

import pytest

from tests.behaviour.faces import AnySandbox, MakeSandbox


@pytest.fixture
def datasci(make_any_sandbox: MakeSandbox) -> AnySandbox:
    for module in ("numpy", "pandas", "matplotlib"):
        pytest.importorskip(module)
    return make_any_sandbox("python-datasci")


def size_of_png(png: bytes) -> tuple[int, int]:
    """Width and height, of a file whose every chunk has the right checksum."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, names = 8, []
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at : at + 8])
        data = png[at + 8 : at + 8 + length]
        assert zlib.crc32(name + data) == int.from_bytes(png[at + 8 + length : at + 12 + length], "big")
        names.append(name)
        at += 12 + length
    assert (names[0], names[-1]) == (b"IHDR", b"IEND")
    return struct.unpack(">II", png[16:24])


@pytest.mark.promise("repl-value")
def test_the_last_expression_is_the_value(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("x = 20\nx + 1")
    assert result.value == "21"
    assert [(rich.what, rich.text) for rich in result.results] == [("value", "21")]
    assert result.stdout == ""


def test_what_is_no_last_expression_has_no_value(any_sandbox: AnySandbox) -> None:
    for code in ("x = 1", "None", "1;", "def f(): pass", "for i in range(3): i", "if True: 5"):
        result = any_sandbox.run_code(code)
        assert (result.value, result.results, result.stdout) == (None, (), ""), code


def test_underscore_is_the_value_before(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("6 * 7")
    assert any_sandbox.run_code("_ + 1").value == "43"


def test_text_of_any_script_is_a_value(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code("'čau 世界 🐈'").value == "'čau 世界 🐈'"


def test_a_value_with_a_broken_repr_is_a_failed_cell_and_no_more(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("class Bad:\n    def __repr__(self): raise ValueError('no text')\nBad()")
    assert "ValueError: no text" in result.stderr
    assert any_sandbox.run_code("1").value == "1"


@pytest.mark.every_face
def test_every_form_of_a_value_comes_back_by_its_type(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("""
        class Rich:
            def __repr__(self): return "plain"
            def _repr_html_(self): return "<b>html</b>"
            def _repr_svg_(self): return "<svg/>"
            def _repr_png_(self): return b"\\x89PNG\\r\\n\\x1a\\n\\x00\\xff"
            def _repr_json_(self): return {"a": [1, None, "x"]}
            def _repr_latex_(self): return "$x^2$"
            def _repr_markdown_(self): return "**m**"
    """)
    result = any_sandbox.run_code("Rich()")
    (rich,) = result.results
    assert (result.value, rich.text, rich.html, rich.svg) == ("plain", "plain", "<b>html</b>", "<svg/>")
    assert (rich.png, rich.latex) == (b"\x89PNG\r\n\x1a\n\x00\xff", "$x^2$")
    assert rich.json == {"a": [1, None, "x"]}
    assert rich.data["text/markdown"] == "**m**"


def test_display_gives_results_in_order_before_the_value(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("from IPython.display import HTML, Latex\ndisplay(1, HTML('<i>2</i>'))\nLatex('$3$')")
    assert [rich.what for rich in result.results] == ["display", "display", "value"]
    assert [result.results[0].text, result.results[1].html, result.results[2].latex] == ["1", "<i>2</i>", "$3$"]


def test_display_needs_no_import(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code("display('shown')").results[0].text == "'shown'"


def test_an_updated_display_replaces_what_was_shown(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("h = display('old', display_id=True)\ndisplay('other')\nh.update('new')")
    assert [rich.text for rich in result.results] == ["'new'", "'other'"]


@pytest.mark.every_face
def test_results_come_as_events_of_a_stream_while_the_cell_runs(any_sandbox: AnySandbox) -> None:
    events = list(any_sandbox.run_code_stream("display('shown')\nprint('after')\n42"))
    shown = [event.result for event in events if event.type == "result"]
    assert [(rich.what, rich.text) for rich in shown] == [("display", "'shown'"), ("value", "42")]
    assert events[-1].type == "exit"
    assert events[-1].result.value == "42"


def test_a_dataframe_comes_back_as_text_and_html(datasci: AnySandbox) -> None:
    (rich,) = datasci.run_code("import pandas as pd\npd.DataFrame({'name': ['a', 'b'], 'n': [1, 2]})").results
    assert rich.text is not None
    assert rich.html is not None
    assert rich.text.splitlines()[0].split() == ["name", "n"]
    assert "<table" in rich.html
    assert "<td>b</td>" in rich.html


def test_a_figure_comes_back_as_png_without_show(datasci: AnySandbox) -> None:
    result = datasci.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('three')\nx = 1")
    (figure,) = [rich for rich in result.results if rich.png is not None]
    assert figure.png is not None
    width, height = size_of_png(figure.png)
    assert width > 100
    assert height > 100
    assert result.stdout == ""


def test_two_figures_are_two_results_and_are_not_shown_again(datasci: AnySandbox) -> None:
    code = "import matplotlib.pyplot as plt\nfor i in range(2):\n    plt.figure()\n    plt.plot([i, 2])"
    assert sum(rich.png is not None for rich in datasci.run_code(code).results) == 2
    assert datasci.run_code("x = 1").results == ()


def test_a_figure_is_shown_when_the_cell_fails_afterwards(datasci: AnySandbox) -> None:
    result = datasci.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\n1 / 0")
    assert result.exit_code == 1
    assert any(rich.png is not None for rich in result.results)


def test_a_huge_value_is_cut_and_says_so(any_sandbox: AnySandbox) -> None:
    value = any_sandbox.run_code("'x' * 50_000_000").value
    assert value is not None
    assert len(value) < 10_000_000
    assert "left out" in value


def test_thousands_of_displays_are_bounded_and_counted(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("for i in range(3000): display(i)")
    assert result.truncated is not None
    assert len(result.results) + result.truncated.results_dropped == 3000
    assert result.results[0].text == "0"
