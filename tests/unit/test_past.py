"""The steps of a sandbox's past: which states stay, which go, and who holds them."""

from __future__ import annotations

import pytest

from ramet.engine.history.past import AT_ONCE, Past, Step
from ramet.errors import InvalidArgument, PointUnknown


class CountedState:
    """A state that knows how many hold it."""

    on_disk = False

    def __init__(self) -> None:
        self.holders = 1

    def hold(self) -> None:
        self.holders += 1

    async def let_go(self) -> None:
        self.release()

    def release(self) -> None:
        assert self.holders > 0
        self.holders -= 1


def past_of(cells: int, wanted: int | None = None, kept: bool = True) -> tuple[Past, list[CountedState]]:
    past = Past(wanted)
    past.release = lambda state: state.release() if isinstance(state, CountedState) else None
    first = CountedState()
    past.begin(first)
    first.release()
    states = [first]
    for number in range(1, cells + 1):
        step = past.add_cell(number, f"x = {number}".encode(), "ok", (), 0)
        if kept:
            states.append(CountedState())
            past.keep(step, states[-1])
    return past, states


def numbers(steps: list[Step]) -> list[int]:
    return [step.number for step in steps]


def test_the_newest_states_stay_and_older_ones_get_rarer() -> None:
    past, states = past_of(100)
    kept = numbers(past.kept())
    assert kept[-10:] == list(range(91, 101))
    older = kept[:-10]
    assert all(number % 2 == 0 for number in older)
    assert [number for number in older if number <= 60] == [0, 16, 24, 32, 40, 48, 56]
    assert len(kept) <= 10 + 5 * 5
    assert sum(state.holders for state in states) == len(kept)


def test_the_newest_states_stay_however_many_cells_without_one_came_between() -> None:
    past, _ = past_of(0)
    with_state = []
    for number in range(1, 191):
        step = past.add_cell(number, b"", "ok", (), 0)
        if number % 19 == 0:
            past.keep(step, CountedState())
            with_state.append(number)
    assert numbers(past.kept()) == [0, *with_state]


def test_a_state_that_is_kept_anew_is_no_older_one() -> None:
    past, _ = past_of(9)
    for _ in range(50):
        past.keep(past.steps[-1], CountedState())
    assert numbers(past.kept()) == list(range(10))


def test_no_more_steps_are_remembered_than_allowed() -> None:
    past, states = past_of(1000)
    assert len(past.steps) == 200
    assert sum(state.holders for state in states) == len(past.kept()) <= 40
    asked, states = past_of(1000, wanted=5)
    assert numbers(asked.steps) == list(range(995, 1001))
    assert sum(state.holders for state in states) == 6


def test_restores_are_thinned_like_cells() -> None:
    past, _ = past_of(0)
    for _ in range(100):
        past.add_restore(CountedState(), 0)
    assert numbers(past.kept()) == numbers(past_of(100)[0].kept())


@pytest.mark.parametrize("wanted", [1, 2, 5, None])
def test_cells_that_die_do_not_push_out_the_kept_states(wanted: int | None) -> None:
    past, states = past_of(1, wanted)
    for number in range(2, 1000):
        past.add_cell(number, b"dies", "died", (), 0)
        assert past.last is past.steps[1]
    assert [state.holders for state in states] == [1, 1]
    assert past.before(1).number == 0
    assert past.steps[-1].cell_id == 999
    assert len(past.steps) <= (200 if wanted is None else wanted + 1) + 1
    for number in range(1000, 2000):
        past.add_cell(number, b"works", "ok", (), 0)
    assert len(past.steps) == (200 if wanted is None else wanted + 1)


async def test_the_steps_with_a_state_are_known_whatever_was_done_to_the_past() -> None:
    past, _ = past_of(40)
    pasts = [past]

    def check() -> None:
        for one in pasts:
            assert one.kept() == [step for step in one.steps if step.state is not None]

    past.lose(past.kept()[-3])
    check()
    past.keep(past.add_cell(41, b"", "ok", (), 0), CountedState())
    past.add_restore(CountedState(), 0)
    check()
    pasts.append(past.copy(until=past.kept()[2]))
    past.truncate(past.kept()[-4])
    check()
    past.drop(past.kept()[0], "gone")
    for number in range(300):
        past.add_cell(50 + number, b"", "ok", (), 0)
    check()
    assert past.kept() == []  # forgotten with the steps
    await pasts[1].close()
    check()


def test_nothing_is_remembered_without_a_history() -> None:
    past = Past(False)
    state = CountedState()
    past.begin(state)
    past.add_restart(0)
    past.add_restore(state, 0)
    assert (past.steps, state.holders) == ([], 1)
    with pytest.raises(PointUnknown, match="nothing to undo"):
        past.before(1)


def test_undo_counts_steps_that_are_part_of_the_present_state() -> None:
    past, _ = past_of(3)
    past.add_cell(4, b"dies", "died", (), 0)
    assert past.before(1).number == 2
    with pytest.raises(InvalidArgument, match="n must be at most 3"):
        past.before(4)


def test_undo_refuses_a_state_that_is_not_exactly_the_one_before_the_cell() -> None:
    past, _ = past_of(3, kept=False)
    with pytest.raises(PointUnknown, match=f"the state after cell 2 is not kept: {AT_ONCE}") as refused:
        past.before(1)
    assert refused.value.details == {"nearest": "p0"}
    past.keep(past.steps[2], CountedState())
    past.steps[2].stale = True
    with pytest.raises(PointUnknown, match="written from outside"):
        past.before(1)
    assert past.find("p2") is past.steps[2]  # by its name one can go there


def test_what_is_undone_is_let_go_and_its_numbers_are_not_given_again() -> None:
    past, states = past_of(5)
    gone = past.truncate(past.steps[2])
    assert (numbers(gone), [state.holders for state in states]) == ([3, 4, 5], [1, 1, 1, 0, 0, 0])
    assert past.add_cell(6, b"", "ok", (), 0).id == "p6"


def test_steps_after_a_restored_one_are_shown_as_lost() -> None:
    past, states = past_of(4)
    lost = past.lose(past.steps[2])
    assert numbers(lost) == [3, 4]
    assert [step.lost for step in past.steps] == [False, False, False, True, True]
    assert [state.holders for state in states] == [1, 1, 1, 0, 0]
    assert past.last is past.steps[2]
    assert past.lose(past.steps[2]) == []


async def test_a_copy_holds_the_same_states_until_it_is_closed() -> None:
    past, states = past_of(3)
    copy = past.copy(until=past.steps[2])
    assert numbers(copy.steps) == [0, 1, 2]
    assert [state.holders for state in states] == [2, 2, 2, 1]
    past.truncate(past.steps[0])
    assert copy.find("p2").state is states[2]
    await copy.close()
    assert [state.holders for state in states] == [1, 0, 0, 0]
    assert copy.kept() == []


def test_after_a_merge_no_id_names_another_state_than_before() -> None:
    past, _ = past_of(3)
    winner = past.copy()
    past.add_cell(4, b"here", "ok", (), 0)
    winner.add_cell(4, b"there", "ok", (), 0)
    winner.add_cell(5, b"there", "ok", (), 0)
    joined = past.joined_by(winner)
    assert [(step.number, step.code) for step in joined.steps[3:]] == [(3, b"x = 3"), (6, b"there"), (7, b"there")]
    assert joined.add_cell(6, b"", "ok", (), 0).id == "p8"


def test_after_a_merge_with_a_sandbox_that_went_on_alone_its_ids_stay() -> None:
    past, _ = past_of(3)
    winner = past.copy()
    winner.add_cell(4, b"there", "ok", (), 0)
    assert numbers(past.joined_by(winner).steps) == [0, 1, 2, 3, 4]


def test_after_a_merge_with_a_sandbox_without_a_past_there_is_a_beginning() -> None:
    past, _ = past_of(3)
    joined = past.joined_by(Past(False))
    (start,) = joined.steps
    assert (start.kind, start.number, start.state) == ("start", 4, None)
    joined.keep(start, CountedState())
    joined.add_cell(1, b"", "ok", (), 0)
    assert joined.before(1) is start
    assert Past(False).joined_by(past).steps == []


def test_the_code_of_a_cell_is_bounded() -> None:
    past = Past(None)
    past.add_cell(1, b"x" * 10_000, "ok", [f"tool{number}" for number in range(1000)], 0)
    assert len(past.steps[0].code) <= 800
    assert len(past.steps[0].tools) <= 50
