"""What tools return, as the code in a sandbox gets it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.guest.guest_driver import Guest
from tests.guest.tool_engine import Blob, Call, ToolEngine, encode, tool

Answer = Callable[[Any], None]
RECORDS = json.dumps({"columns": ["name", "units"], "data": [["a", 1], ["b", None]]}).encode()


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    folder = tmp_path_factory.mktemp("guest")
    guest = Guest(cwd=str(folder), commands=str(folder / "run" / "bin"))
    yield guest
    guest.close()


@pytest.fixture
def returns(guest: Guest) -> Iterator[Answer]:
    """Has the tool `get` return this."""
    values: list[Any] = []

    def handler(call: Call) -> Any:
        return values[-1]

    engine = ToolEngine(handler)
    engine.give(guest, [tool("get")])
    yield values.append
    engine.close()


def shown(guest: Guest, code: str) -> str | None:
    outcome = guest.run(code)
    assert outcome.exit_code == 0, outcome.stderr
    return outcome.value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1.5,
        "",
        "ä\ud800\U0001f600",
        [],
        {},
        {"days": [{"units": 1}, {"units": 2}]},
        2**100,
        [[[[]]]],
        {"ramet": "$ramet"},
    ],
)
def test_plain_values_come_as_they_are(guest: Guest, returns: Answer, value: Any) -> None:
    returns(value)
    assert shown(guest, "repr(get())") == repr(repr(value))


def test_numbers_that_json_does_not_have_come_too(guest: Guest, returns: Answer) -> None:
    returns([float("nan"), float("inf"), float("-inf")])
    assert shown(guest, "get()") == "[nan, inf, -inf]"


def test_bytes_stand_anywhere_in_a_value(guest: Guest, returns: Answer) -> None:
    value = {"a": [{"$ramet": 1}, 2], "b": {"$ramet": 0}}
    returns(Blob(encode(value, [("bytes", b"first"), ("bytes", b"\0\xff")])))
    assert shown(guest, "get()") == "{'a': [b'\\x00\\xff', 2], 'b': b'first'}"
    returns(Blob(encode({"$ramet": 0}, [("bytes", b"alone")])))
    assert shown(guest, "get()") == "b'alone'"


def test_dicts_that_look_like_marks_are_dicts(guest: Guest, returns: Answer) -> None:
    inner = {"$ramet": "dict", "items": [["$ramet", 0], ["more", {"$ramet": "dict", "items": [["$ramet", [1]]]}]]}
    returns(Blob(encode([inner])))
    assert shown(guest, "get()") == "[{'$ramet': 0, 'more': {'$ramet': [1]}}]"


@pytest.mark.deep("load")
def test_a_hundred_megabytes_come(guest: Guest, returns: Answer) -> None:
    large = bytes(range(256)) * (400 << 10)
    returns(Blob(encode([{"$ramet": 0}, "end"], [("bytes", large)])))
    for call in ("get()", "await get()"):
        code = f"data, end = {call}\n(len(data), data == bytes(range(256)) * (400 << 10), end)"
        assert shown(guest, code) == f"({len(large)}, True, 'end')"
    returns(["x" * 1000] * 100_000)
    assert shown(guest, "value = get()\n(len(value), set(map(len, value)))") == "(100000, {1000})"


def test_arrays_come_as_arrays_of_their_own(guest: Guest, returns: Answer) -> None:
    numpy = pytest.importorskip("numpy")
    for array in (
        numpy.arange(12.0).reshape(3, 4),
        numpy.asfortranarray(numpy.arange(12, dtype="i2").reshape(3, 4)),
        numpy.zeros((0, 3)),
        numpy.array(5),
        numpy.array([("a", 1)], dtype=[("é", "U3"), ("n", "i4")]),
    ):
        file = io.BytesIO()
        numpy.save(file, array, allow_pickle=False)
        returns(Blob(encode({"$ramet": 0}, [("npy", file.getvalue())])))
        code = "a = get()\nrepr((a.tolist(), a.shape, a.dtype.descr, a.flags.writeable, a.flags.aligned))"
        assert shown(guest, code) == repr(repr((array.tolist(), array.shape, array.dtype.descr, True, True)))


def test_a_pickle_is_refused(guest: Guest, returns: Answer) -> None:
    numpy = pytest.importorskip("numpy")
    file = io.BytesIO()
    numpy.save(file, numpy.array([{}], dtype=object), allow_pickle=True)
    returns(Blob(encode({"$ramet": 0}, [("npy", file.getvalue())])))
    outcome = guest.run("get()")
    assert "ToolError: the value that the tool returned cannot be read here: ValueError" in outcome.stderr


@pytest.mark.parametrize(
    ("kind", "library", "name"),
    [
        ("arrow:pandas", "pandas", "pandas.DataFrame"),
        ("arrow:polars", "polars", "polars.dataframe.frame.DataFrame"),
        ("arrow:table", "pyarrow", "pyarrow.lib.Table"),
        ("records:pandas", "pandas", "pandas.DataFrame"),
        ("records:polars", "polars", "polars.dataframe.frame.DataFrame"),
        ("records:table", "pyarrow", "pyarrow.lib.Table"),
    ],
)
def test_a_table_comes_in_the_library_it_was_of(
    guest: Guest, returns: Answer, kind: str, library: str, name: str
) -> None:
    pytest.importorskip(library)
    data = RECORDS
    if kind.startswith("arrow"):
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({"name": ["a", "b"], "units": [1, None]})
        sink = io.BytesIO()
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
    returns(Blob(encode({"table": {"$ramet": 0}}, [(kind, data)])))
    guest.run("table = get()['table']\nkind = type(table)")
    found = shown(guest, "f'{kind.__module__}.{kind.__qualname__}'")
    assert found is not None
    assert found.strip("'").replace("pandas.core.frame.", "pandas.") == name
    rows = {
        "pandas": "table.where(table.notna(), None).values.tolist()",
        "polars": "[list(row) for row in table.rows()]",
        "pyarrow": "[list(row.values()) for row in table.to_pylist()]",
    }[library]
    found = shown(guest, rows)
    assert found is not None
    assert found.replace("1.0", "1").replace("nan", "None") == "[['a', 1], ['b', None]]"


def test_without_its_library_a_table_is_one_of_pandas_or_a_list_of_rows(guest: Guest, returns: Answer) -> None:
    pytest.importorskip("pandas")
    returns(Blob(encode({"$ramet": 0}, [("records:polars", RECORDS)])))
    guest.run(
        "import sys\n"
        "def get_without(*names):\n"
        "    kept = {name: sys.modules.get(name) for name in names}\n"
        "    sys.modules.update(dict.fromkeys(names))\n"
        "    try:\n"
        "        return get()\n"
        "    finally:\n"
        "        for name, module in kept.items():\n"
        "            sys.modules.pop(name)\n"
        "            if module: sys.modules[name] = module"
    )
    assert shown(guest, "type(get_without('polars')).__module__.partition('.')[0]") == "'pandas'"
    assert shown(guest, "get_without('polars', 'pandas')") == (
        "[{'name': 'a', 'units': 1}, {'name': 'b', 'units': None}]"
    )


def test_what_cannot_be_read_is_a_tool_error(guest: Guest, returns: Answer) -> None:
    for blob in (b"", b"\x05\0\0\0{{{{{", encode({"$ramet": 0}, [("strange", b"")]), encode(1, [("bytes", b"1")])[:-1]):
        returns(Blob(blob))
        outcome = guest.run("get()")
        assert "\nToolError: the value that the tool returned cannot be read here: " in outcome.stderr
        assert "ramet_guest" not in outcome.stderr
    returns(3)
    assert shown(guest, "get()") == "3"
