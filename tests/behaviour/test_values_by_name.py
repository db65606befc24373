"""get and set: values of global variables, out of a sandbox and into one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy
import pandas
import pytest

from ramet import AsyncSandbox, InvalidArgument, LimitReached, NameUnknown, RametError, Sandbox, ValueUnsupported
from tests.behaviour.calling import ok
from tests.behaviour.faces import AnySandbox, MakeSandbox
from tests.behaviour.waiting import UNTIL_GO, go, wait_until, wait_until_running

PLAIN = {"a": 1, "b": [1.5, None, True, "čau"], "c": {"d": {}}, 7: b"\x00bytes", "long": "x" * 20_000}

FRAME = """
import pandas
frame = pandas.DataFrame(
    {
        "whole": [1, 2, 3],
        "broken": [1.5, None, 3.5],
        "text": ["a", None, "č"],
        "day": pandas.to_datetime(["2020-01-01", None, "2020-01-03"]),
        "zoned": pandas.to_datetime(["2020-01-01", None, "2020-01-03"]).tz_localize("Europe/Prague"),
        "kind": pandas.Categorical(["x", "y", "x"], ordered=True),
        "nullable": pandas.array([1, None, 3], dtype="Int64"),
        "flag": pandas.array([True, None, False], dtype="boolean"),
        "mixed": [1, "x", None],
    },
    index=pandas.Index(["r1", "r2", "r3"], name="row"),
)
"""


def frame() -> pandas.DataFrame:
    made: dict[str, Any] = {}
    exec(FRAME, made)
    return made["frame"]  # type: ignore[no-any-return]


@pytest.mark.every_face
def test_plain_values_and_bytes_come_back_as_they_went(any_sandbox: AnySandbox) -> None:
    any_sandbox.set("given", PLAIN)
    ok(any_sandbox.run_code("given['a'] += 1; copy = {**given, 't': (1, 2)}"))
    assert any_sandbox.get("given") == {**PLAIN, "a": 2}
    assert any_sandbox.get("copy") == {**PLAIN, "a": 2, "t": [1, 2]}
    large = bytes(range(256)) * 20_000
    any_sandbox.set("large", large)
    assert any_sandbox.run_code("len(large)").value == str(len(large))
    assert any_sandbox.get("large") == large
    assert not any_sandbox.files.list("/var/tmp/ramet")
    with pytest.raises(NameUnknown, match="nothing is not defined"):
        any_sandbox.get("nothing")


@pytest.mark.promise("repl-values")
def test_arrays_and_frames_come_back_as_they_went(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox("python-datasci")
    array = numpy.arange(24, dtype="float32").reshape(2, 3, 4)
    sandbox.set("array", array)
    assert sandbox.run_code("array.dtype, array.sum()").value == "(dtype('float32'), np.float32(276.0))"
    assert numpy.array_equal(sandbox.get("array"), array)
    ok(sandbox.run_code("odd = [array.T, array[:, ::2], array[0, 0, 0:0], array.astype('M8[s]'), array.astype('U4')]"))
    for one, other in zip(
        sandbox.get("odd"),
        [array.T, array[:, ::2], array[0, 0, 0:0], array.astype("M8[s]"), array.astype("U4")],
        strict=True,
    ):
        assert numpy.array_equal(one, other)
        assert one.dtype == other.dtype
    ok(sandbox.run_code(FRAME))
    pandas.testing.assert_frame_equal(sandbox.get("frame"), frame())
    sandbox.set("given", frame())
    ok(sandbox.run_code("pandas.testing.assert_frame_equal(given, frame)"))
    ok(sandbox.run_code("many = frame.set_index(['whole', 'text']); one = frame['zoned']; none = frame[[]].iloc[:0]"))
    pandas.testing.assert_frame_equal(sandbox.get("many"), frame().set_index(["whole", "text"]))
    pandas.testing.assert_series_equal(sandbox.get("one"), frame()["zoned"])
    assert sandbox.get("none").shape == (0, 0)
    sandbox.set("series", frame()["nullable"])
    ok(sandbox.run_code("pandas.testing.assert_series_equal(series, frame['nullable'])"))
    ok(sandbox.run_code("inside = {'frames': [frame, array]}"))
    pandas.testing.assert_frame_equal(sandbox.get("inside")["frames"][0], frame())


def test_what_cannot_be_taken_is_named_with_its_type_and_place(any_sandbox: AnySandbox) -> None:
    ok(any_sandbox.run_code("class Kind: pass\nthing = Kind(); deep = {'a': [1, Kind()]}; keys = {(1, 2): 3}"))
    ok(any_sandbox.run_code("loop = []; loop.append(loop); import os"))
    for name, told in [
        ("thing", "thing is of the type Kind, which cannot be taken out of a sandbox"),
        ("deep", r"deep\['a'\]\[1\] is of the type Kind"),
        ("keys", "keys has a key of the type tuple"),
        ("loop", r"loop\[0\] contains itself"),
        ("os", "os is of the type module"),
    ]:
        with pytest.raises(ValueUnsupported, match=told) as refused:
            any_sandbox.get(name)
        assert "download" in str(refused.value)
    with pytest.raises(InvalidArgument, match="name must be the name of a variable"):
        any_sandbox.get("thing.__class__")
    assert ok(any_sandbox.run_code("1")).value == "1"


def test_what_is_too_large_is_refused_before_it_travels(any_sandbox: AnySandbox) -> None:
    ok(any_sandbox.run_code("data = bytes(101 << 20); many = [0] * 9_000_000; deep = []"))
    ok(any_sandbox.run_code("for _ in range(1000): deep = [deep]"))
    for name in ("data", "many"):
        with pytest.raises(LimitReached, match=f"{name} has more than"):
            any_sandbox.get(name)
    with pytest.raises(ValueUnsupported, match="levels deep"):
        any_sandbox.get("deep")
    with pytest.raises(LimitReached, match="at most 104857600"):
        any_sandbox.set("x", bytes(101 << 20))


def test_values_wait_their_turn_behind_cells(
    any_sandbox: AnySandbox, in_background: Callable[..., Future[Any]]
) -> None:
    any_sandbox.run_code("x = 1")
    running = in_background(any_sandbox.run_code, UNTIL_GO + "\nx = 2")
    wait_until_running(any_sandbox)
    taken = in_background(any_sandbox.get, "x")
    wait_until_running(any_sandbox, waiting=1)
    given = in_background(any_sandbox.set, "x", 3)
    wait_until_running(any_sandbox, waiting=2)
    assert not taken.done()
    go(any_sandbox)
    assert taken.result(60) == 2
    given.result(60)
    assert running.result(60).ok
    assert any_sandbox.run_code("x").value == "3"


def test_taking_a_value_runs_no_code_of_its_class(any_sandbox: AnySandbox) -> None:
    ok(
        any_sandbox.run_code(
            """
class Text(str):
    def __str__(self): raise SystemExit
class Many(dict):
    def items(self): raise SystemExit
    def __iter__(self): raise SystemExit
class List(list):
    def __iter__(self): raise SystemExit
class Number(int):
    def __index__(self): raise SystemExit
thing = Many({Text('a'): List([Number(1), Text('b')])})
"""
        )
    )
    assert any_sandbox.get("thing") == {"a": [1, "b"]}


def test_code_that_hangs_when_a_value_is_asked_for_is_given_up_with_its_caller(any_sandbox: AnySandbox) -> None:
    """A property of a dataclass is code; the sandbox is closed under it."""
    ok(
        any_sandbox.run_code(
            """
import dataclasses, os
@dataclasses.dataclass
class Slow:
    x: int
    def __getattribute__(self, name):
        if name == 'x':
            open('/root/begun', 'w').close()
            while True: pass
        return object.__getattribute__(self, name)
slow = object.__new__(Slow)
"""
        )
    )
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(any_sandbox.get, "slow")
        wait_until(lambda: any_sandbox.files.exists("/root/begun"), "the code of the value runs")
        any_sandbox.close()
        with pytest.raises(RametError):
            asked.result(60)


def test_a_fork_has_the_values_that_were_given_before_it() -> None:
    with Sandbox() as parent:
        parent.set("x", [1, 2])
        with parent.fork(2) as children:
            children[0].set("x", "changed")
            assert [one.get("x") for one in (parent, *children)] == [[1, 2], "changed", [1, 2]]


def test_a_lost_repl_knows_no_names_and_can_be_given_new_ones(make_any_sandbox: MakeSandbox) -> None:
    any_sandbox = make_any_sandbox(recover="fresh")
    any_sandbox.set("x", 1)
    any_sandbox.run_code("import os; os._exit(3)")
    with pytest.raises(NameUnknown):
        any_sandbox.get("x")
    any_sandbox.set("x", 2)
    again = any_sandbox.run_code("x")
    assert (again.value, again.restarted) == ("2", True)


async def test_a_large_value_that_is_given_up_while_it_waits_its_turn_leaves_no_file() -> None:
    async def kept() -> list[str]:
        found = [entry.name for entry in await sandbox.files.list("/var/tmp/ramet")] if await is_there() else []
        return [name for name in found if name.startswith("value-")]

    async def is_there() -> bool:
        return await sandbox.files.exists("/var/tmp/ramet")

    async with AsyncSandbox() as sandbox:
        running = asyncio.create_task(sandbox.run_code("import time; time.sleep(1000)"))
        giving = asyncio.create_task(sandbox.set("large", b"x" * 3_000_000))
        while not await kept():
            assert not giving.done()
        giving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await giving
        assert await kept() == []
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
