"""Whom memory is charged to: a limit counts what a sandbox adds, and nobody dies of what a relative does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ramet import ForkFailed, Sandbox
from tests.fork.relatives import TOOLS, Fork, at_once, run, value
from tests.walls.attempts import ending

LIMIT_MIB = 300
HELD_MIB = LIMIT_MIB * 7 // 10
STARVED = ("lost", "out of memory", 137)

_HOLD = f"held = [bytearray(os.urandom(1 << 20)) for _ in range({HELD_MIB})]"
_REWRITE = "for block in held: block[:] = bytes([block[0] ^ 255]) * len(block)"

pytestmark = pytest.mark.usefixtures("memory_is_counted")


@pytest.fixture
def loaded() -> Iterator[Sandbox]:
    """A sandbox that holds 70 % of what it may."""
    with Sandbox(memory_mib=LIMIT_MIB, recover="fresh") as sandbox:
        run(sandbox, TOOLS)
        run(sandbox, _HOLD)
        yield sandbox


@pytest.mark.promise("fork-memory-limits")
def test_a_parent_may_rewrite_all_it_has_after_a_fork(loaded: Sandbox, fork: Fork) -> None:
    """The pages that children still share stay charged to it while it makes new ones."""
    children = fork(loaded, 2)
    run(loaded, _REWRITE)
    assert all(each == HELD_MIB for each in at_once([loaded, *children], "len(held)"))


@pytest.mark.deep("load")
def test_a_parent_may_rewrite_all_it_has_after_a_fork_at_a_point() -> None:
    """A point gives way when memory is short; a child that was made from it does not."""
    with Sandbox(memory_mib=LIMIT_MIB, recover="fresh", history=5) as sandbox:
        run(sandbox, TOOLS)
        run(sandbox, _HOLD)
        assert value(sandbox, "len(held)") == HELD_MIB
        with sandbox.fork(1, at="p2") as (child,):
            run(sandbox, _REWRITE)
            assert at_once([sandbox, child], "len(held)") == [HELD_MIB] * 2


@pytest.mark.deep("load")
def test_parent_and_children_may_all_rewrite_at_once(loaded: Sandbox, fork: Fork) -> None:
    children = fork(loaded, 2)
    assert at_once([loaded, *children], f"{_REWRITE}\nlen(held)") == [HELD_MIB] * 3


@pytest.mark.deep("restarts")
def test_a_parent_may_be_forked_and_rewrite_again_and_again(loaded: Sandbox) -> None:
    for _ in range(4):
        children = loaded.fork(1)
        run(loaded, _REWRITE)
        assert value(children[0], "len(held)") == HELD_MIB
        children[0].close()
    assert value(loaded, f"{_REWRITE}\nlen(held)") == HELD_MIB


@pytest.mark.deep("load")
def test_a_parent_may_rewrite_while_many_forks_of_different_moments_live(loaded: Sandbox, fork: Fork) -> None:
    children = []
    for _ in range(3):
        children += fork(loaded, 1)
        run(loaded, _REWRITE)
    assert at_once(children, "len(held)") == [HELD_MIB] * 3


@pytest.mark.deep("load")
def test_a_child_that_rewrites_all_it_inherited_and_is_forked_lives(loaded: Sandbox, fork: Fork) -> None:
    (child,) = fork(loaded)
    run(child, _REWRITE)
    (grandchild,) = fork(child)
    run(child, _REWRITE)
    run(grandchild, _REWRITE)
    assert at_once([loaded, child, grandchild], "len(held)") == [HELD_MIB] * 3


def test_a_limit_counts_what_a_child_adds(loaded: Sandbox, fork: Fork) -> None:
    (child,) = fork(loaded)
    added = LIMIT_MIB * 6 // 10
    assert value(child, f"more = [bytearray(b'x' * (1 << 20)) for _ in range({added})]; len(more)") == added


def test_a_child_that_adds_too_much_ends_alone(
    loaded: Sandbox, fork: Fork, neighbour_still_answers: Callable[[], None]
) -> None:
    greedy, sibling = fork(loaded, 2)
    (grandchild,) = fork(sibling)
    result = greedy.run_code("more = []\nwhile True: more.append(bytearray(b'x' * (1 << 20)))", timeout=60)
    assert ending(result) == STARVED
    assert at_once([loaded, sibling, grandchild], "len(held)") == [HELD_MIB] * 3
    neighbour_still_answers()
    again = greedy.run_code("6 * 7", timeout=60)
    assert (again.value, again.restarted) == ("42", True)


def test_a_parent_that_takes_too_much_ends_alone(loaded: Sandbox, fork: Fork) -> None:
    children = fork(loaded, 2)
    # With room given for what its children hold it may take a while longer, but not for ever.
    result = loaded.run_code("more = []\nwhile True: more.append(bytearray(b'x' * (1 << 20)))", timeout=60)
    assert ending(result) == STARVED
    assert at_once(children, "len(held)") == [HELD_MIB] * 2


@pytest.mark.deep("load")
def test_the_room_given_for_children_ends_with_them(loaded: Sandbox) -> None:
    children = loaded.fork(4)
    run(loaded, _REWRITE)
    for child in children:
        child.close()
    run(loaded, _REWRITE)
    result = loaded.run_code(f"more = [bytearray(b'x' * (1 << 20)) for _ in range({LIMIT_MIB})]", timeout=60)
    assert ending(result) == STARVED


@pytest.mark.deep("load")
def test_a_snapshot_lets_its_sandbox_rewrite_everything(loaded: Sandbox) -> None:
    with loaded.snapshot() as snapshot:
        run(loaded, _REWRITE)
        run(loaded, _REWRITE)
        with Sandbox(template=snapshot, memory_mib=LIMIT_MIB) as other:
            assert value(other, "len(held)") == HELD_MIB


@pytest.mark.deep("load")
def test_usage_tells_what_is_a_childs_own(loaded: Sandbox, fork: Fork) -> None:
    (child,) = fork(loaded)
    before = child.info().usage["private_bytes"]
    assert before < 40 << 20
    run(child, _REWRITE)
    assert child.info().usage["private_bytes"] - before > (HELD_MIB - 20) << 20


def test_fork_info_tells_unique_memory_pause_and_files(parent: Sandbox) -> None:
    run(parent, "_ = open('/root/file', 'wb').write(bytes(100_000))")
    children = parent.fork(2)
    try:
        for told in (children.fork_info, *(child.fork_info for child in children)):
            assert told is not None
            assert 0 < told.pause_seconds <= told.total_seconds
            assert 0 < told.unique_bytes < 100 << 20
            assert told.file_bytes_copied >= 100_000
        assert parent.fork_info is None
    finally:
        for child in children:
            child.close()


_SPARSE = """
import mmap, os
memory = os.memfd_create('sparse')
os.ftruncate(memory, 3 << 30)
shared = mmap.mmap(memory, 3 << 30)
shared[5:9] = b'near'
shared[(2 << 30) + 7 : (2 << 30) + 10] = b'far'
"""


def test_holes_of_shared_memory_are_not_copied(fork: Fork) -> None:
    """Three gibibytes, of which eight kibibytes are there, in a sandbox that may have 256 MiB."""
    with Sandbox(memory_mib=256) as sandbox:
        run(sandbox, _SPARSE)
        for child in fork(sandbox, 2):
            assert value(child, "shared[5:9], shared[(2 << 30) + 7 : (2 << 30) + 10], shared[1 << 30]") == (
                b"near",
                b"far",
                0,
            )
            assert value(child, "os.fstat(memory).st_blocks * 512 < 1 << 20") is True
            run(child, "shared[5:9] = b'mine'; assert os.pread(memory, 4, 5) == b'mine'")
        assert value(sandbox, "shared[5:9], os.fstat(memory).st_blocks * 512 < 1 << 20") == (b"near", True)


@pytest.mark.parametrize("way", ["os.close(memory)", "shared.close(); shared = mmap.mmap(-1, 2 << 30)"])
def test_a_fork_of_holes_that_nobody_can_tell_fails_at_once(way: str) -> None:
    with Sandbox(memory_mib=256) as sandbox:
        run(sandbox, _SPARSE)
        run(sandbox, _CLOSE_ALL + way)
        with pytest.raises(ForkFailed, match="without a name, and uses"):
            sandbox.fork(1)
        assert value(sandbox, "6 * 7") == 42


# Closes what mmap has duplicated of it.
_CLOSE_ALL = """
for number in os.listdir('/proc/self/fd'):
    try:
        if int(number) != memory and 'memfd:sparse' in os.readlink(f'/proc/self/fd/{number}'): os.close(int(number))
    except OSError: pass
"""
