"""Calls that cannot be right are refused by their type of error, before anything happens."""

from __future__ import annotations

from typing import Any

import pytest

from ramet import InvalidArgument, RametError, Sandbox, SandboxClosed
from tests.fork.relatives import Fork, run, value
from tests.walls.engines import fresh_engine


@pytest.mark.parametrize("n", [0, -1, 257, 10**9, 1.5, "2", None, True, [1]])
def test_a_number_of_children_that_is_none_is_refused(n: Any, parent: Sandbox) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parent.fork(n)
    assert refused.value.argument == "n"
    assert value(parent, "6 * 7") == 42


@pytest.mark.parametrize("reseed", [1, "yes", None])
def test_reseed_is_true_or_false(reseed: Any, parent: Sandbox) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parent.fork(1, reseed=reseed)
    assert refused.value.argument == "reseed"


def test_a_closed_sandbox_can_do_nothing_of_all_this(fork: Fork) -> None:
    closed = Sandbox()
    closed.close()
    with Sandbox() as alive:
        snapshot = alive.snapshot()
        calls = (
            lambda: closed.fork(1),
            closed.snapshot,
            lambda: closed.diff(alive),
            lambda: alive.diff(closed),
            lambda: closed.merge_into(alive),
            lambda: alive.merge_into(closed),
            lambda: closed.restore(snapshot),
        )
        for call in calls:
            with pytest.raises(SandboxClosed):
                call()
        snapshot.close()
        assert value(alive, "6 * 7") == 42


def test_a_sandbox_does_not_merge_with_itself(parent: Sandbox) -> None:
    run(parent, "kept = 42")
    with pytest.raises(InvalidArgument):
        parent.merge_into(parent)
    assert value(parent, "kept") == 42


def test_a_sandbox_differs_in_nothing_from_itself(parent: Sandbox) -> None:
    try:
        assert parent.diff(parent).is_empty
    except InvalidArgument:
        pass


@pytest.mark.parametrize("other", [None, "sandbox", 5, object()])
def test_what_is_no_sandbox_is_refused(other: Any, parent: Sandbox) -> None:
    for call in (parent.merge_into, parent.diff, parent.restore):
        with pytest.raises(InvalidArgument):
            call(other)
    assert value(parent, "6 * 7") == 42


@pytest.mark.parametrize("paths", ["/root", [5], ["/root\0"], 5])
def test_paths_of_a_difference_are_a_list_of_paths(paths: Any, parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    with pytest.raises(InvalidArgument) as refused:
        parent.diff(child, paths=paths)
    assert refused.value.argument == "paths"


def test_a_sandbox_or_snapshot_of_another_engine_is_refused(parent: Sandbox) -> None:
    run(parent, "kept = 42")
    snapshot = parent.snapshot()
    with fresh_engine(), Sandbox() as foreign:
        for call in (
            lambda: parent.merge_into(foreign),
            lambda: foreign.merge_into(parent),
            lambda: parent.diff(foreign),
            lambda: foreign.diff(parent),
            lambda: foreign.restore(snapshot),
        ):
            with pytest.raises(InvalidArgument):
                call()
        assert value(foreign, "6 * 7") == 42
        with Sandbox(template=snapshot) as made:
            made.merge_into(parent.fork(1)[0])  # it was made where the snapshot is
            assert value(made, "kept") == 42
    snapshot.close()
    assert value(parent, "kept") == 42


def test_a_closed_snapshot_makes_nothing(parent: Sandbox) -> None:
    snapshot = parent.snapshot()
    snapshot.close()
    snapshot.close()
    for call in (lambda: parent.restore(snapshot), lambda: Sandbox(template=snapshot), lambda: snapshot.save_as("x")):
        with pytest.raises(RametError):
            call()
    assert value(parent, "6 * 7") == 42


@pytest.mark.parametrize("name", ["", "default", "python-datasci", "a/b", "x" * 300, "nul\0", 5, None])
def test_names_that_cannot_be_taken_are_refused(name: Any, parent: Sandbox) -> None:
    with parent.snapshot() as snapshot:
        with pytest.raises(InvalidArgument):
            snapshot.save_as(name)


def test_an_unknown_template_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        Sandbox(template="never-saved")
