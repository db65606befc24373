"""Errors for wrong arguments: sentences that say what must be and what was given, bounded, and without secrets."""

from __future__ import annotations

import pytest

from ramet.protocol.argument_errors import Words, kind_of, must, unknown_field, wrong_argument


class Stubborn:
    def __repr__(self) -> str:
        raise AssertionError("the repr of a user's object is not asked for")


def test_an_error_says_what_must_be_and_what_was_given() -> None:
    error = must("memory_mib", "be at least 64", 1)
    assert str(error) == "memory_mib must be at least 64, got 1"
    assert error.argument == "memory_mib"
    assert error.hint is None


def test_a_hint_follows_the_sentence() -> None:
    error = must("code", "be at most 5 bytes long", Words("6 bytes"), hint="upload data as a file")
    assert str(error) == "code must be at most 5 bytes long, got 6 bytes\n\nhint: upload data as a file"


def test_a_part_of_an_argument_can_be_the_subject() -> None:
    error = must("env", "be a string", kind_of(5), subject="the value of 'A' in env")
    assert error.message == "the value of 'A' in env must be a string, got an int"
    assert error.argument == "env"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "None"),
        (True, "True"),
        (0.5, "0.5"),
        (float("nan"), "nan"),
        ("text", "'text'"),
        (b"bytes", "b'bytes'"),
        ([1, 2], "a list"),
        (Stubborn(), "a Stubborn"),
        (2**1000, "a number of 1001 bits"),
    ],
)
def test_what_was_given_is_shown(given: object, shown: str) -> None:
    assert must("x", "be other", given).message == f"x must be other, got {shown}"


@pytest.mark.parametrize(
    "given",
    ["x" * 10**7, "\n" * 10**7, b"\0" * 10**7, 10**100_000, ["x" * 10**6] * 10],
    ids=["text", "line breaks", "bytes", "number", "list"],
)
def test_what_was_given_is_shortened(given: object) -> None:
    assert len(must("x", "be other", given).message) < 120


@pytest.mark.parametrize(
    ("value", "words"), [(None, "None"), (1, "an int"), ("s", "a str"), ((), "a tuple"), (OSError(), "an OSError")]
)
def test_a_kind_has_its_article(value: object, words: str) -> None:
    assert kind_of(value) == words


def test_a_field_that_nobody_knows_is_named_with_those_there_are() -> None:
    error = unknown_field("kode", ["code", "language"])
    assert str(error) == "unknown field 'kode'\n\nhint: fields: code, language"
    assert error.argument == "kode"
    assert unknown_field("x", []).hint == "there are no fields"
    assert len(unknown_field("k" * 10**6, []).message) < 120


def test_any_sentence_names_its_argument_in_the_details() -> None:
    error = wrong_argument("winner", "winner must be another sandbox, got the sandbox itself")
    assert (error.argument, error.message) == ("winner", "winner must be another sandbox, got the sandbox itself")
