"""What tools return, on its whole way into a sandbox."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy
import pandas
import polars
import pytest

from ramet import Result
from tests.behaviour.faces import MakeSandbox

_HUNDRED_MB = 100_000_000


def ok(result: Result) -> Result:
    assert result.ok, result.stderr
    return result


@pytest.mark.deep("load")
def test_a_hundred_megabytes_of_text_of_bytes_and_of_rows(make_any_sandbox: MakeSandbox) -> None:
    text = "äx" * (_HUNDRED_MB // 3)
    data = hashlib.shake_128(b"x").digest(_HUNDRED_MB)
    rows = [{"number": number, "text": "x" * 75} for number in range(1_000_000)]
    # Each has to fit twice into the sandbox: as it comes and as what it is.
    tools = [_giving("text", text), _giving("data", data), _giving("rows", rows)]
    sandbox = make_any_sandbox(tools=tools, memory_mib=2048)
    code = """
    import hashlib
    value = text()
    print(len(value), value == 'äx' * (len(value) // 2))
    value = data()
    print(len(value), hashlib.sha256(value).hexdigest())
    value = rows()
    print(len(value), value[-1]['number'], len(value[-1]['text']))
    """
    result = ok(sandbox.run_code(code))
    assert result.stdout.split("\n")[:3] == [
        f"{len(text)} True",
        f"{len(data)} {hashlib.sha256(data).hexdigest()}",
        "1000000 999999 75",
    ]
    assert [call.outcome for call in result.tool_calls] == ["ok", "ok", "ok"]


def _giving(name: str, value: object) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, "handler": lambda: value}


@pytest.mark.every_face
def test_bytes_stay_bytes_wherever_they_are(make_any_sandbox: MakeSandbox) -> None:
    every = bytes(range(256))
    sandbox = make_any_sandbox(tools=[_giving("get", {"a": [every, bytearray(b"b")], "$ramet": b""})])
    result = ok(sandbox.run_code("print(get() == {'a': [bytes(range(256)), b'b'], '$ramet': b''})"))
    assert result.stdout == "True\n"


@pytest.mark.every_face
def test_while_a_long_value_is_on_its_way_others_are_answered(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[_giving("large", b"x" * 20_000_000), _giving("small", 1)])
    code = """
    import threading
    sizes = []
    threads = [threading.Thread(target=lambda: sizes.append(len(large()))) for _ in range(4)]
    for thread in threads: thread.start()
    print(sum(small() for _ in range(20)))
    for thread in threads: thread.join()
    print(sizes)
    """
    assert ok(sandbox.run_code(code)).stdout == "20\n[20000000, 20000000, 20000000, 20000000]\n"


FRAME = pandas.DataFrame(
    {"units": [1, 2], "price": [0.5, float("nan")], "name": ["a", "é"], "day": pandas.to_datetime(["2024-01-01"] * 2)}
)


@pytest.mark.parametrize("arrow", [True, False], ids=["arrow", "records"])
def test_a_table_of_pandas_is_one_inside(
    make_any_sandbox: MakeSandbox, arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not arrow:
        monkeypatch.setattr("ramet.protocol.tools.tables.find_spec", lambda name: None)
    asked: list[tuple[object, ...]] = []

    def sum_up(rows: list[dict[str, Any]]) -> int:
        table = pandas.DataFrame(rows)
        asked.append(tuple(table.columns))
        return int(table["units"].sum())

    sandbox = make_any_sandbox(tools=[_giving("get", FRAME), sum_up])
    code = """
    import pandas
    table = get()
    print(type(table) is pandas.DataFrame, list(table.columns), table['units'].sum(), table['name'].tolist())
    print(table['price'].isna().tolist(), pandas.to_datetime(table['day']).dt.year.tolist(), table['day'].dtype.kind)
    print(sum_up(rows=table[['units', 'name']].to_dict('records')))
    """
    lines = ok(sandbox.run_code(code)).stdout.split("\n")
    assert lines[0] == "True ['units', 'price', 'name', 'day'] 3 ['a', 'é']"
    assert lines[1].startswith("[False, True] [2024, 2024] ")
    assert lines[1].endswith("M") == arrow  # records know dates as text
    assert lines[2] == "3"
    assert asked == [("units", "name")]


def test_tables_of_polars_and_arrays_of_numpy(make_any_sandbox: MakeSandbox) -> None:
    table = polars.DataFrame({"a": [1, None], "s": ["x", "y"]})
    sandbox = make_any_sandbox(tools=[_giving("table", table), _giving("array", numpy.eye(3, dtype="int8"))])
    code = """
    import numpy, polars
    t, a = table(), array()
    print(type(t) is polars.DataFrame, t.rows(), type(a) is numpy.ndarray, a.dtype, a.trace())
    """
    assert ok(sandbox.run_code(code)).stdout == "True [(1, 'x'), (None, 'y')] True int8 3\n"


def test_a_table_in_bash_is_a_list_of_rows(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[_giving("get", FRAME[["units", "name"]])])
    code = """get | python -c 'import json, sys; print(json.load(sys.stdin))'"""
    result = ok(sandbox.run_code(code, "bash"))
    assert result.stdout == "[{'units': 1, 'name': 'a'}, {'units': 2, 'name': 'é'}]\n"
