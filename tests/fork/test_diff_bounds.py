"""diff of files that are far too large to be read: it ends, and holds up nobody."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet import Sandbox
from tests.fork.relatives import Fork, run, value

_HUGE = 1 << 60  # bytes, of which none is there


def test_a_diff_of_a_file_without_end_is_told_and_both_sandboxes_go_on(parent: Sandbox, fork: Fork) -> None:
    run(parent, f"open('/root/same', 'w').truncate({_HUGE})")
    (child,) = fork(parent)
    run(child, f"open('/root/new', 'w').truncate({_HUGE}); f = open('/root/same', 'r+b'); f.seek(-9, 2); f.write(b'x')")
    run(child, "f.close()")
    difference = parent.diff(child, paths=["/root/same", "/root/new"])
    assert {change.path: (change.change, change.approximate) for change in difference.files} == {
        "/root/new": ("added", False),
        "/root/same": ("modified", False),
    }
    assert all(change.after is not None and change.after.digest is None for change in difference.files)
    assert [value(each, "6 * 7") for each in (parent, child)] == [42, 42]


def test_seven_diffs_of_files_without_end_leave_room_for_everything_else(parent: Sandbox, fork: Fork) -> None:
    """Creates, info() and terminals use threads too; none of these may wait for a comparison."""
    run(parent, f"for n in range(20): open(f'/root/{{n}}', 'w').truncate({_HUGE})")
    children = fork(parent, 7)
    run(children[0], f"for n in range(20): open(f'/root/{{n}}', 'w').truncate({_HUGE} - 1)")
    with ThreadPoolExecutor(8) as threads:
        diffs = [threads.submit(one.diff, other) for one, other in zip(children, [*children[1:], parent], strict=True)]
        with Sandbox(memory_mib=301) as neighbour:
            assert neighbour.info().id == neighbour.id
            with neighbour.terminal(["echo", "here"]) as terminal:
                assert b"here" in b"".join(terminal.read())
            (copy,) = fork(neighbour)
            assert value(copy, "6 * 7") == 42
        found = [each.result(timeout=100) for each in diffs]
    assert [len(each.files) >= 20 for each in found] == [True] + [False] * 6


@pytest.mark.deep("load")
def test_diffs_that_take_long_are_given_up_when_a_sandbox_closes(parent: Sandbox, fork: Fork) -> None:
    """Alternating pages and holes are the slowest there is to compare."""
    run(
        parent,
        """
with open('/root/slow', 'wb', buffering=0) as f:
    for page in range(200_000):
        os.pwrite(f.fileno(), b'x', page * 8192)
for n in range(100): os.link('/root/slow', f'/root/slow{n}')
""",
        timeout=120,
    )
    children = fork(parent, 4)
    errors: list[BaseException | None] = []

    def compare(one: Sandbox, other: Sandbox) -> None:
        try:
            one.diff(other)
            errors.append(None)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=compare, args=pair) for pair in ((children[0], children[1]), (children[2], children[3]))
    ]
    for thread in threads:
        thread.start()
    with Sandbox(memory_mib=302) as neighbour:
        assert neighbour.info().id == neighbour.id
    for child in children:
        child.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
