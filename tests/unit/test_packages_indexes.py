"""The indexes that pip would ask, against the rules of a sandbox."""

from __future__ import annotations

import pytest

from ramet.engine.packages.indexes import why_none_answers
from ramet.protocol.network.specs import NetworkSpec, read_rules
from ramet_guest.packaging.installer import default_index


@pytest.mark.parametrize(
    ("rules", "denied", "urls", "missing"),
    [
        (["a.example"], [], ["https://a.example/simple"], None),
        (["a.example"], [], ["https://b.example/simple"], "b.example:443"),
        (["a.example"], [], ["http://b.example:8080/simple"], "b.example:8080"),
        (["a.example:443"], [], ["http://user:word@a.example/simple"], "a.example:80"),
        (["a.example"], [], ["https://192.0.2.1/simple"], "192.0.2.1:443"),
        (["192.0.2.1"], [], ["https://192.0.2.1/simple"], None),
        (["a.example"], ["a.example:*"], ["https://a.example/simple"], "a.example:*"),
        # One that answers may be enough.
        (["a.example"], [], ["https://b.example/simple", "https://a.example/simple"], None),
        ([], [], ["https://b.example/simple", "https://c.example"], 'b.example:443", "c.example:443'),
        # Not ours to say.
        ([], [], ["file:///wheels"], None),
        ([], [], ["https://b.example:x/"], None),
        ([], [], [], None),
    ],
)
def test_what_is_missing_is_told_with_the_rule_that_would_help(
    rules: list[str], denied: list[str], urls: list[str], missing: str | None
) -> None:
    why = why_none_answers(NetworkSpec(allow=read_rules(rules), deny=read_rules(denied)), urls)
    if missing is None:
        assert why is None
    else:
        assert why is not None
        assert why.endswith(f'sandbox.network.allow("{missing}")')
        assert "word" not in why


def test_an_open_network_refuses_no_index() -> None:
    assert why_none_answers(NetworkSpec(open=True), ["https://a.example/simple"]) is None


def test_the_index_that_nobody_named_is_the_one_of_this_pip() -> None:
    pytest.importorskip("pip")
    from pip._internal.models.index import PyPI  # as the installer finds it

    assert default_index() == PyPI.simple_url
