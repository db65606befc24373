from __future__ import annotations

from collections.abc import Callable

from tests.guest.guest_driver import INTERRUPT, TAKEN, Guest


def test_the_value_of_a_last_expression_is_shown(guest: Guest) -> None:
    assert guest.run("x = 20\nx + 1").value == "21"
    assert guest.run("'text'").value == "'text'"
    assert guest.run("[1, 2]").value == "[1, 2]"
    assert guest.run("_").value == "[1, 2]"


def test_nothing_is_shown_without_a_value(guest: Guest) -> None:
    for cell in ("x = 1", "None", "1;", "1; # comment", "print(end='')", "for i in range(3): i", "if True:\n    5"):
        assert guest.run(cell).results == [], cell


def test_every_mime_form_comes_back(guest: Guest) -> None:
    outcome = guest.run(
        "class A:\n"
        "    def __repr__(self): return 'text form'\n"
        "    def _repr_html_(self): return '<b>€</b>'\n"
        "    def _repr_png_(self): return b'\\x89PNG'\n"
        "    def _repr_svg_(self): return '<svg/>'\n"
        "    def _repr_json_(self): return {'a': [1]}\n"
        "    def _repr_latex_(self): return '$x$'\n"
        "A()"
    )
    (shown,) = outcome.results
    assert shown.names[0] == "text/plain"
    assert shown.data == {
        "text/plain": "text form",
        "text/html": "<b>€</b>",
        "image/png": b"\x89PNG",
        "image/svg+xml": "<svg/>",
        "application/json": {"a": [1]},
        "text/latex": "$x$",
    }


def test_display_update_and_clear_are_told_apart(guest: Guest) -> None:
    outcome = guest.run(
        "from IPython.display import clear_output\nh = display('a', display_id='my')\n"
        "h.update('b')\nclear_output()\ndisplay(1, 2)"
    )
    assert [(shown.what, shown.display_id) for shown in outcome.results] == [
        ("display", "my"),
        ("update", "my"),
        ("clear", None),
        ("display", None),
        ("display", None),
    ]


def test_words_about_a_cell_that_is_over_are_ignored(guest: Guest) -> None:
    """An interrupt may end a display before the engine has said that it took it."""
    guest.run("display(1)")
    guest.send(TAKEN, {"number": 1})
    guest.send(INTERRUPT, {"id": 1})
    outcome = guest.run("6 * 7")
    assert (outcome.value, outcome.stdout, outcome.stderr) == ("42", "", "")


def test_results_arrive_while_the_cell_runs(guest: Guest) -> None:
    outcome = guest.run("display(1)\n2")
    assert [shown.what for shown in outcome.results] == ["display", "value"]


def test_oversized_forms_are_cut_or_left_out_with_a_note(guest: Guest) -> None:
    (shown,) = guest.run("'x' * (3 << 20)").results
    assert len(shown.text) < (1 << 20) + 100
    assert shown.text.endswith("bytes left out]")
    (shown,) = guest.run(
        "class A:\n    def __repr__(self): return 'a'\n    def _repr_png_(self): return b'x' * (17 << 20)\nA()"
    ).results
    assert shown.text == "a\n[image/png left out: 17825792 bytes]"
    assert shown.names == ["text/plain"]


def test_a_failing_formatter_is_an_error_of_the_cell_not_of_the_guest(guest: Guest) -> None:
    guest.run("class A:\n    def __repr__(self): raise ValueError('no repr')")
    outcome = guest.run("A()")
    assert "ValueError: no repr" in outcome.stderr
    assert guest.run("1").value == "1"


def test_a_data_frame_comes_back_as_text_and_html(start_guest: Callable[..., Guest]) -> None:
    guest = start_guest(preload=("pandas",))
    (shown,) = guest.run("import pandas as pd\npd.DataFrame({'a': [1]})").results
    assert shown.names == ["text/plain", "text/html"]
    assert "<table" in shown.data["text/html"]


def test_a_figure_comes_back_as_png_without_show_even_after_an_exception(start_guest: Callable[..., Guest]) -> None:
    guest = start_guest()
    outcome = guest.run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\n1 / 0")
    assert [shown.data["image/png"][:4] for shown in outcome.results] == [b"\x89PNG"]
    assert outcome.exit_code == 1
    assert guest.run("1").value == "1"
    outcome = guest.run("plt.plot([1]);\nplt.show()")
    assert len(outcome.results) == 1
