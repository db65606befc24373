"""diff(snapshot): what has changed in a sandbox since."""

from __future__ import annotations

import asyncio

import pytest

from ramet import AsyncSandbox, Diff, InvalidArgument, Sandbox, SandboxClosed
from tests.fork.relatives import run, value


def changes(difference: Diff) -> dict[str, str]:
    return {
        **{change.path: change.change for change in difference.files},
        **{change.name: change.change for change in difference.names},
    }


@pytest.mark.idle_loop
def test_nothing_has_changed_since_a_snapshot_that_was_just_taken(parent: Sandbox) -> None:
    run(parent, "numbers = list(range(100)); _ = open('/root/file', 'w').write('x')")
    with parent.snapshot() as snapshot:
        difference = parent.diff(snapshot)
        assert difference.is_empty, str(difference)


@pytest.mark.idle_loop
def test_what_was_added_changed_and_removed_since_is_told_in_this_direction(parent: Sandbox) -> None:
    run(parent, "kept, changed, gone = 1, 2, 3\nfor name in 'kcg': _ = open(f'/root/{name}', 'w').write(name)")
    with parent.snapshot() as snapshot:
        run(parent, "changed, added = 20, 4; del gone\n_ = open('/root/c', 'w').write('C'); os.unlink('/root/g')")
        run(parent, "_ = open('/root/new', 'w').write('new')")
        difference = parent.diff(snapshot, paths=["/root"])
        assert changes(difference) == {
            "/root/c": "modified",
            "/root/g": "removed",
            "/root/new": "added",
            "changed": "changed",
            "gone": "removed",
            "added": "added",
        }
        assert parent.diff(snapshot, paths=["/tmp"]).files == ()
        # Neither was harmed by the comparison.
        assert value(parent, "changed, added") == (20, 4)
        parent.restore(snapshot)
        assert value(parent, "kept, changed, gone") == (1, 2, 3)
        assert parent.diff(snapshot).is_empty


def test_a_comparison_leaves_no_sandbox_behind(parent: Sandbox) -> None:
    with parent.snapshot() as snapshot:
        before = {row.id for row in Sandbox.list_all()}
        parent.diff(snapshot)
        assert {row.id for row in Sandbox.list_all()} == before


@pytest.mark.idle_loop
def test_a_child_can_be_compared_with_a_snapshot_of_its_parent(parent: Sandbox) -> None:
    run(parent, "x = 1")
    with parent.snapshot() as snapshot, parent.fork() as children:
        run(children[0], "x = 2")
        assert changes(children[0].diff(snapshot)) == {"x": "changed"}


def test_a_snapshot_that_is_closed_or_something_else_is_refused(parent: Sandbox) -> None:
    snapshot = parent.snapshot()
    snapshot.close()
    with pytest.raises(SandboxClosed):
        parent.diff(snapshot)
    with pytest.raises(InvalidArgument):
        parent.diff("snp_1")  # type: ignore[arg-type]


async def test_the_awaited_face_compares_with_a_snapshot_too() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("x = 1")
        async with await sandbox.snapshot() as snapshot:
            # Its turn comes behind the cell that was asked for before it.
            _, difference = await asyncio.gather(sandbox.run_code("x = 2"), sandbox.diff(snapshot))
        assert changes(difference) == {"x": "changed"}
