"""Completion of names in a sandbox: what is offered, and that asking changes nothing."""

from __future__ import annotations

import pytest

from ramet import Sandbox
from ramet.cli.local.name_completion import complete


def test_names_attributes_builtins_keywords_and_magics_are_offered(sandbox: Sandbox) -> None:
    sandbox.run_code("import os\nvalue_one = value_two = 1\n_hidden = 1")
    assert complete(sandbox, "value_") == ["value_one", "value_two"]
    assert "os.path.join" in complete(sandbox, "os.path.jo")
    assert "print" in complete(sandbox, "prin")
    assert "lambda" in complete(sandbox, "lamb")
    assert "%timeit" in complete(sandbox, "%time")
    assert "_hidden" in complete(sandbox, "_hid")
    assert "_hidden" not in complete(sandbox, "")
    assert complete(sandbox, "no_such_name") == []
    assert complete(sandbox, "no_such_name.attribute") == []


def test_asking_leaves_no_name_value_or_output_behind(sandbox: Sandbox) -> None:
    sandbox.run_code("6 * 7")
    names = "sorted(n for n in globals() if n[0] != '_'), sorted(sys.modules)"  # not _1, _i1, ...: those of cells
    before = sandbox.run_code(f"import sys; {names}").value
    sandbox.run_code("6 * 7")
    printed = len([event for event in sandbox.replay() if event.type != "exit"])
    complete(sandbox, "sys.pa")
    assert sandbox.run_code("_, _i, In[-2], len(In)").value == "(42, '6 * 7', '6 * 7', 5)"
    assert len([event for event in sandbox.replay() if event.type != "exit"]) == printed
    sandbox.run_code("6 * 7")
    after = sandbox.run_code(names).value
    assert after == before


def test_computed_attributes_are_not_computed(sandbox: Sandbox) -> None:
    sandbox.run_code(
        "class Lazy:\n"
        "    count = 0\n"
        "    @property\n"
        "    def costly(self):\n"
        "        Lazy.count += 1\n"
        "        return 'text'\n"
        "lazy = Lazy()"
    )
    assert complete(sandbox, "lazy.cos") == ["lazy.costly"]
    assert complete(sandbox, "lazy.costly.upp") == []
    assert sandbox.run_code("Lazy.count").value == "0"


@pytest.mark.deep("load")
def test_what_never_answers_is_given_up(sandbox: Sandbox) -> None:
    sandbox.run_code("class Endless:\n    def __dir__(self):\n        while True: pass\nendless = Endless()")
    assert complete(sandbox, "endless.a") == []
    assert sandbox.run_code("6 * 7").value == "42"
