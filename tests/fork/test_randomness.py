"""What must differ between relatives differs; what is a computation goes on alike, unless asked to differ."""

from __future__ import annotations

import os

import pytest

from ramet import Sandbox
from tests.fork.relatives import Fork, all_the_same, at_once, run, value

# Each is warmed up before the fork, so that whatever state it keeps is copied.
_UNIQUE = {
    "os.urandom": ("", "os.urandom(16)"),
    "uuid4": ("import uuid", "str(uuid.uuid4())"),
    "secrets": ("import secrets", "secrets.token_hex(16)"),
    "SystemRandom": ("import random", "random.SystemRandom().random()"),
    "tempfile names": ("import tempfile", "os.path.basename(tempfile.mkdtemp())"),
    "names of one running sequence": (
        "import tempfile\nnames = tempfile._get_candidate_names(); _ = next(names)",
        "next(names)",
    ),
    "OpenSSL RAND_bytes": ("import ssl", "ssl.RAND_bytes(16)"),
}


@pytest.mark.parametrize("what", _UNIQUE)
def test_it_differs_in_parent_siblings_and_grandchildren(what: str, parent: Sandbox, fork: Fork) -> None:
    before, draw = _UNIQUE[what]
    run(parent, f"{before}\n_ = {draw}")
    children = fork(parent, 3)
    grandchildren = [*fork(children[0], 2), *fork(children[1], 1)]
    family = [parent, *children, *grandchildren]
    drawn = at_once(family, f"[{draw} for _ in range(3)]")
    everything = [each for one in drawn for each in one]
    assert len(set(everything)) == len(everything), drawn


@pytest.mark.promise("fork-new-keys")
def test_private_keys_differ(parent: Sandbox, fork: Fork) -> None:
    """With equal pids, two children of the first prototype made the same key."""
    if not parent.run_code("import cryptography", timeout=60).ok:
        assert not os.environ.get("CI"), "cryptography belongs to the extra `dev`"
        pytest.skip("cryptography is not installed")
    run(
        parent,
        """
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
def keys():
    return (ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value,
            ed25519.Ed25519PrivateKey.generate().private_bytes_raw())
_ = keys()
""",
    )
    children = fork(parent, 3)
    family = [parent, *children, *fork(children[0], 2)]
    made = at_once(family, "keys()")
    assert len({number for number, _ in made}) == len(family)
    assert len({raw for _, raw in made}) == len(family)


def test_key_material_differs_when_drawn_by_a_thread_that_crossed_the_fork(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import ssl
asked, drawn = threading.Semaphore(0), []
def draws():
    while True:
        drawn.append(ssl.RAND_bytes(16)); asked.acquire()
threading.Thread(target=draws, daemon=True).start()
_ = until(lambda: drawn)
""",
    )
    children = fork(parent, 3)
    family = [parent, *children, *fork(children[0], 1)]
    seen = at_once(family, "asked.release()\nuntil(lambda: drawn[1:])[0]")
    assert len(set(seen)) == len(family)


def test_sandboxes_of_one_snapshot_differ_too(parent: Sandbox) -> None:
    run(parent, "import ssl, uuid; _ = ssl.RAND_bytes(16)")
    with parent.snapshot() as snapshot:
        with Sandbox(template=snapshot) as one, Sandbox(template=snapshot) as two:
            drawn = at_once([parent, one, two], "(ssl.RAND_bytes(16), str(uuid.uuid4()), os.urandom(8))")
            assert all(len(set(kind)) == 3 for kind in zip(*drawn, strict=True))


_GENERATORS = """
import random
own = random.Random(5)
def draw():
    found = [random.random(), own.random()]
    if 'numpy' in sys.modules: found += [float(np.random.random()), float(modern.random()), float(legacy.random())]
    return found
"""
_NUMPY_TOO = (
    "import numpy as np\nmodern = np.random.default_rng(5); legacy = np.random.RandomState(5); np.random.seed(5)\n"
)


def with_numpy_if_there(parent: Sandbox) -> None:
    parent.run_code(_NUMPY_TOO, timeout=60)
    run(parent, _GENERATORS + "_ = draw()")


def test_generators_continue_alike_in_all_generations(parent: Sandbox, fork: Fork) -> None:
    with_numpy_if_there(parent)
    children = fork(parent, 2)
    (grandchild,) = fork(children[0])
    first = all_the_same([parent, *children, grandchild], "draw()")
    assert all_the_same([parent, *children, grandchild], "draw()") != first


def test_generators_differ_when_asked_to(parent: Sandbox, fork: Fork) -> None:
    with_numpy_if_there(parent)
    run(parent, "import copy; expected = copy.deepcopy(own)")
    children = fork(parent, 3, reseed=True)
    drawn = at_once([parent, *children], "draw()")
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 4, drawn
    assert value(parent, "expected.random()") == drawn[0][1], "the parent's own go on as they were"


def test_a_hash_seed_stays_so_that_dictionaries_of_the_parent_work(parent: Sandbox, fork: Fork) -> None:
    run(parent, "table = {f'key {n}': n for n in range(1000)}; order = list({str(n) for n in range(100)})")
    (child,) = fork(parent, 1, reseed=True)
    look = "(sum(table[f'key {n}'] for n in range(1000)), list({str(n) for n in range(100)}) == order)"
    assert all_the_same([parent, child], look) == (499500, True)
