"""What the guest tells of its namespace: equal content has equal digests in any process, every change is seen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.guest.guest_driver import PATIENCE_SECONDS, Guest

ASK_NAMES, NAMES = 5, 6


class Named:
    """One row of the answer."""

    def __init__(self, row: list[Any]) -> None:
        self.name, self.type, self.value, self.size, self.fingerprint = row


def names(guest: Guest, seconds: float = 10.0) -> dict[str, Named]:
    guest.send(ASK_NAMES, {"seconds": seconds})
    kind, header, blob = guest._frame(time.monotonic() + PATIENCE_SECONDS)
    assert (kind, header) == (NAMES, {"omitted": 0})
    return {row[0]: Named(row) for row in map(json.loads, blob.splitlines())}


@pytest.fixture(scope="module")
def shared_guest() -> Iterator[Guest]:
    guest = Guest(preload=("numpy", "pandas"))
    yield guest
    guest.close()


@pytest.fixture
def clean_guest(shared_guest: Guest) -> Guest:
    shared_guest.run("for n in [n for n in globals() if not n.startswith('_')]: del globals()[n]\ndel n")
    return shared_guest


# What makes a value, and a change in place.
CHANGES = {
    "list": ("x = [1, 'a', [2.5, None]]", "x[2][1] = True"),
    "long list": ("x = list(range(100_000))", "x[77_777] = -1"),
    "long list of strings": ("x = [str(n) for n in range(10_000)]", "x[7777] += '!'"),
    "dictionary": ("x = {'a': {'b': {'c': [1]}}}", "x['a']['b']['c'].append(2)"),
    "key": ("x = {1: 2}", "x[1.5] = x.pop(1)"),
    "set": ("x = {(1, 'a'), (2, 'b'), 'c'}", "x.add('d')"),
    "small set": ("x = {'a', 'b', 'c', 'd'}", "x.add('e')"),
    "small sets inside": ("x = [{'a', 'b'}, frozenset('cd'), {'k': 1}]", "x[2]['k'] = 2"),
    "huge text": ("x = ['a' * 5_000_000]", "x[0] = x[0][:-1] + 'b'"),
    "bytearray": ("x = bytearray(5_000_000)", "x[4_999_999] = 1"),
    "array": ("import numpy as np\nx = np.arange(1_000_000.0)", "x[999_999] = 0"),
    "view": ("import numpy as np\nx = np.arange(1_000_000).reshape(1000, 1000).T[::3]", "x[5, 5] = -1"),
    "fortran": ("import numpy as np\nx = np.asfortranarray(np.ones((300, 300)))", "x[5, 5] = -1"),
    "masked": ("import numpy as np\nx = np.ma.array([1, 2, 3], mask=[0, 1, 0])", "x.mask[0] = True"),
    "dates": ("import numpy as np\nx = np.array(['2024-01-01', '2024-01-02'], 'M8[D]')", "x[1] += 1"),
    "records": ("import numpy as np\nx = np.zeros(3, [('a', 'i4'), ('b', 'O')])", "x['b'][1] = 'new'"),
    "array of objects": ("import numpy as np\nx = np.array([[1], [2, 3]], dtype=object)", "x[1].append(4)"),
    "numpy generator": ("import numpy as np\nx = np.random.default_rng(1)", "x.random()"),
    "frame": ("import pandas as pd\nx = pd.DataFrame({'a': [1, 2], 'b': ['p', 'q']})", "x.loc[1, 'b'] = 'z'"),
    "frame index": ("import pandas as pd\nx = pd.DataFrame({'a': [1, 2]})", "x.index = [5, 6]"),
    "frame column name": ("import pandas as pd\nx = pd.DataFrame({'a': [1, 2]})", "x.columns = ['b']"),
    "categories": ("import pandas as pd\nx = pd.Series(['a', 'b', 'a'], dtype='category')", "x[1] = 'a'"),
    "nullable": ("import pandas as pd\nx = pd.Series([1, None, 3], dtype='Int64')", "x[1] = 2"),
    "series of dates": ("import pandas as pd\nx = pd.Series(pd.date_range('2024', periods=3))", "x[1] = x[0]"),
    "multi index": (
        "import pandas as pd\nx = pd.DataFrame({'v': [1, 2]}, index=pd.MultiIndex.from_tuples([(1, 2), (1, 3)]))",
        "x.index = x.index.set_levels([7], level=0)",
    ),
    "dataclass": (
        "from dataclasses import dataclass, field\n@dataclass\nclass D:\n    n: int\n"
        "    more: list = field(default_factory=list)\nx = D(1, [[2]])",
        "x.more[0].append(3)",
    ),
    "slots": ("class S:\n    __slots__ = ('a',)\nx = S()\nx.a = [1]", "x.a.append(2)"),
    "object": ("class O: pass\nx = O()\nx.inner = O()\nx.inner.deep = {1}", "x.inner.deep.add(2)"),
    "object with a lock": ("import threading\nclass O: pass\nx = O()\nx.lock = threading.Lock()\nx.n = 1", "x.n = 2"),
    "locked": ("import threading\nx = threading.Lock()", "x.acquire()"),
    "list subclass": ("class L(list): pass\nx = L([1, [2]])", "x[1].append(3)"),
    "dict subclass": (
        "from collections import defaultdict\nx = defaultdict(list)\nx['a'].append(1)",
        "x['a'].append(2)",
    ),
    "deque": ("from collections import deque\nx = deque([1, 2])", "x.append(3)"),
    "cycle": ("x = [1, []]\nx[1].append(x)", "x[1].append(2)"),
    "all refer to all": (
        "class P: pass\nx = [P() for n in range(300)]\nfor n, p in enumerate(x): p.others, p.n = x[:], n",
        "x[299].n = 'other'",
    ),
    "parents": (
        "class T:\n    def __init__(self, up, deep):\n        self.up = up\n"
        "        self.down = [T(self, deep - 1) for _ in range(4)] if deep else []\nx = T(None, 6)",
        "x.down[3].down[3].down[3].up = x",
    ),
    "state with side effects": (
        "class G(list):\n    __slots__ = ('a', 'b')\n    asked = 0\n"
        "    def __getstate__(self):\n        self.a += 1\n        return self.a\n"
        "class H(G): pass\nx = H([1, 2])\nx.a = 0\nx.more = [3]",
        "x.more.append(4)",
    ),
    "figure": (
        "import matplotlib\nmatplotlib.use('agg')\nfrom matplotlib.figure import Figure\n"
        "x = Figure()\nx.subplots().plot([1, 2, 3])",
        "x.axes[0].set_title('title')",
    ),
    "instance before its class": ("class K: pass\nx = [[K() for n in range(1000)]]\nx[0][5].n = 1", "x[0][5].n = 2"),
    "socket": ("import socket\nx = socket.socket()", "x.close()"),
    "deep": ("x = None\nfor n in range(20_000): x = [n, x]", "y = x\nwhile y[1]: y = y[1]\ny[0] = 'end'\ndel y"),
    "random": ("import random\nx = random.Random(5)", "x.random()"),
    "closure": (
        "def outer():\n    seen = []\n    def inner(n):\n        seen.append(n)\n    return inner\nx = outer()",
        "x(1)",
    ),
    "default": ("def x(n, seen=[]):\n    seen.append(n)", "x(1)"),
    "class": ("class x:\n    def f(self): return 1", "x.f = lambda self: 2"),
    "class value": ("class x:\n    n = [1]", "x.n.append(2)"),
    "generator": ("x = (n for n in [1, 2, 3])", "next(x)"),
    "iterator": ("x = iter([1, 2, 3])", "next(x)"),
    "file": ("x = open('/dev/zero', 'rb', buffering=0)", "x.close()"),
    "bytes file": ("import io\nx = io.BytesIO(b'abc')", "x.write(b'd')"),
    "memo": ("x = [[1]] * 3", "x[0].append(2)"),
    "enum": ("import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\nx = [E.A]", "x[0] = E.B"),
    "decimal": ("from decimal import Decimal\nx = [Decimal('1.10')]", "x[0] = Decimal('1.1')"),
    "true is not one": ("x = [1]", "x[0] = True"),
}


@pytest.mark.parametrize("made", CHANGES)
def test_a_change_in_place_is_seen_and_looking_alone_changes_nothing(clean_guest: Guest, made: str) -> None:
    first, change = CHANGES[made]
    outcome = clean_guest.run(first)
    assert outcome.exit_code == 0, outcome.stderr
    before = names(clean_guest)
    assert before["x"].fingerprint is not None
    assert {name: row.fingerprint for name, row in names(clean_guest).items()} == {
        name: row.fingerprint for name, row in before.items()
    }
    outcome = clean_guest.run(change)
    assert outcome.exit_code == 0, outcome.stderr
    after = names(clean_guest)["x"]
    assert after.fingerprint not in (None, before["x"].fingerprint)


@pytest.mark.deep("restarts")
def test_equal_content_has_equal_digests_in_another_process(start_guest: Callable[..., Guest]) -> None:
    digests = []
    for seed in ("1", "2"):
        guest = start_guest(preload=("numpy", "pandas"), env={"PYTHONHASHSEED": seed})
        if seed == "2":
            guest.run("padding = [object() for _ in range(10_000)]\ndel padding")
        found = {}
        # A figure holds ids of its own parts, which are others in another process unless it is a fork.
        for made, (first, change) in ((made, how) for made, how in CHANGES.items() if made != "figure"):
            guest.run("for n in [n for n in globals() if not n.startswith('_')]: del globals()[n]\ndel n")
            guest.run(first)
            if made != "numpy generator":
                guest.run(change)
            found[made] = names(guest)["x"].fingerprint
        digests.append(found)
    assert digests[0] == digests[1]
    assert None not in digests[0].values()


def test_equal_content_is_equal_whatever_it_was_made_from(clean_guest: Guest) -> None:
    clean_guest.run(
        "import pandas as pd\n"
        "shared = [1]\na = [shared, shared]\nb = [[1], [1]]\ndel shared\n"
        "s = {n * 7 for n in range(1000)}\nt = {n * 7 for n in reversed(range(1000))}\n"
        "f = pd.DataFrame({'a': [1, 2], 'b': [3, 4]})\ng = pd.DataFrame({'a': [1, 2]})\ng['b'] = [3, 4]\n"
        "def h(n): return n + 1\nold = h\ndef h(n): return n + 1\n"
        "u = 'ab' + str(1)\nv = 'ab1'"
    )
    found = names(clean_guest)
    for one, other in (("a", "b"), ("s", "t"), ("f", "g"), ("h", "old"), ("u", "v")):
        assert found[one].fingerprint == found[other].fingerprint, (one, other)


def test_names_of_the_repl_and_of_python_are_left_out(guest: Guest) -> None:
    assert names(guest) == {}
    guest.run("1 + 1\n")
    guest.run("import sys\n__secret__ = 1\n_own = 2\n!true")
    guest.run("'shown'")
    found = names(guest)
    assert set(found) == {"sys", "_own"}
    assert (found["sys"].type, found["sys"].value) == ("module", "<module 'sys'>")
    assert guest.run("_").value == "'shown'"


def test_values_are_short_whatever_they_hold(clean_guest: Guest) -> None:
    clean_guest.run(
        "import pandas as pd, numpy as np\n"
        "text = 'a\\n' * 1000\nnumbers = list(range(100_000))\nnested = [[[[[1]]]]]\nhuge = 10 ** 100_000\n"
        "frame = pd.DataFrame({'a': [1], 'b': [2]})\narray = np.zeros((1000, 1000))\n"
        "class A: pass\na = A()\ndef f(p, q=1): pass\none = (1,)\nempty = set()\n"
        "class B:\n    def __repr__(self): return 'line\\nbreak ' + hex(id(self)) + ' at 0x7fff00'\nb = B()"
    )
    found = names(clean_guest)
    assert all(len(row.value) <= 200 and "\n" not in row.value for row in found.values())
    assert found["numbers"].value == "[0, 1, 2, 3, 4, 5, ... 100000 items]"
    assert found["nested"].value == "[[[[...]]]]"
    assert found["huge"].value == "<int of 332193 bits>"
    assert found["frame"].value == "1 rows x 2 columns: a, b"
    assert (found["array"].value, found["array"].size) == ("shape (1000, 1000), dtype float64", 8_000_000)
    assert (found["a"].type, found["a"].value) == ("A", "<A object>")
    assert (found["f"].value, found["one"].value, found["empty"].value) == ("f(p, q)", "(1,)", "set()")
    assert found["b"].value.startswith("line break 0x")
    assert " at 0x" not in found["b"].value


def test_values_that_fail_in_every_way_are_told_without_harm(clean_guest: Guest) -> None:
    clean_guest.run(
        "class A:\n"
        "    def __repr__(self): raise ValueError\n"
        "    def __reduce_ex__(self, protocol): raise SystemExit(3)\n"
        "    def __sizeof__(self): return -5\n"
        "class B:\n"
        "    def __getattribute__(self, name): raise KeyboardInterrupt\n"
        "class C:\n"
        "    def __reduce_ex__(self, protocol): import os; return os.fork() and 'parent' or 'child'\n"
        "class D:\n"
        "    __class__ = property(lambda self: 1 / 0)\n"
        "a, b, c, d, e = A(), B(), C(), D(), 5"
    )
    found = names(clean_guest)
    assert set("abcdeABCD") == set(found)
    assert found["a"].fingerprint is None
    assert found["e"].fingerprint is not None
    assert clean_guest.run("a, b, c, d, e = 1, 2, 3, 4, 5\ne").value == "5"


def test_looking_draws_no_random_numbers_and_imports_nothing(guest: Guest) -> None:
    guest.run(
        "import random, sys\nstate = random.getstate()\nbefore = set(sys.modules)\nx = [1, {2}, lambda: 3, object()]"
    )
    names(guest)
    assert guest.run("random.getstate() == state, set(sys.modules) == before").value == "(True, True)"


@pytest.mark.deep("load")
def test_one_large_value_does_not_take_the_time_of_the_others(clean_guest: Guest) -> None:
    clean_guest.run("large = [[n] for n in range(2_000_000)]\nsmall = [1, 2]\ntext = 'a'")
    found = names(clean_guest, seconds=0.5)
    assert found["large"].fingerprint is None
    assert found["small"].fingerprint is not None
    assert found["text"].fingerprint is not None


def test_a_repr_that_does_not_end_is_interrupted_and_the_rest_is_told(clean_guest: Guest) -> None:
    clean_guest.run(
        "import sys\nclass A:\n    def __repr__(self):\n        print('begun', flush=True)\n        while True: pass\n"
        "b = A()\na = 1\nc = 3"
    )
    clean_guest._reset()
    clean_guest.send(ASK_NAMES, {"seconds": 1.0})
    clean_guest.wait_for_stdout("begun")
    clean_guest.interrupt()
    kind, _, blob = clean_guest._frame(time.monotonic() + PATIENCE_SECONDS)
    assert kind == NAMES
    told = {row[0]: Named(row) for row in map(json.loads, blob.splitlines())}
    assert list(told) == ["A", "a", "b", "c", "sys"]
    assert told["b"].value == "<A object>"
    assert all(row.fingerprint is not None for row in told.values())
    assert clean_guest.run("a").value == "1"


def test_more_names_than_can_be_told_are_counted(clean_guest: Guest) -> None:
    clean_guest.run("for n in range(10_100): globals()[f'name{n}'] = n")
    clean_guest.send(ASK_NAMES, {"seconds": 2.0})
    kind, header, blob = clean_guest._frame(time.monotonic() + PATIENCE_SECONDS)
    assert kind == NAMES
    assert len(blob.split(b"\n")) + header["omitted"] == 10_101
