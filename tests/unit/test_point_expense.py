"""What a point may cost: cells wait for few, and sandboxes that rewrite much memory get few."""

from __future__ import annotations

import os

import pytest

from ramet.engine.history.expense import Expense
from ramet.engine.history.memory import machine_memory_bytes
from ramet.isolation.kernel import cgroups

MIB = 2**20


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_memory_of_a_container_counts_where_it_is_less_than_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit, expected in ((64 * MIB, 64 * MIB), (None, host_bytes), (2 * host_bytes, host_bytes)):
        monkeypatch.setattr(cgroups, "memory_limit", lambda limit=limit: limit)
        assert machine_memory_bytes() == expected


def test_a_few_points_are_free_and_later_ones_are_a_share_of_the_time() -> None:
    expense = Expense(0.03, 2, Time())
    expense.took(0.003)
    waited = 0
    while expense.may_wait:
        expense.waited()
        waited += 1
    assert waited == 2
    taken = 0
    for _ in range(100_000):  # ten seconds of cells that follow one another
        expense.ran(0.0001)
        if expense.may_wait:
            expense.waited()
            expense.took(0.003)
            taken += 1
    assert 0 < taken * 0.003 <= 0.03 * 10


def test_a_long_cell_does_not_pay_for_a_flood_of_points() -> None:
    expense = Expense(0.03, 0, Time())
    expense.took(0.003)
    expense.ran(3600.0)
    waited = 0
    while expense.may_wait:
        expense.waited()
        waited += 1
    assert waited < 20


def test_a_small_sandbox_is_tried_at_once_and_a_large_one_when_enough_time_has_passed() -> None:
    time = Time()
    expense = Expense(0.03, 0, time)
    assert expense.refusal(100 * MIB, 0) == ""
    assert "1024 MiB of memory" in expense.refusal(1024 * MIB, 0)
    time.now = 60.0
    assert expense.refusal(1024 * MIB, 0, patient=False) != ""  # never while a cell waits
    assert expense.refusal(1024 * MIB, 0) == ""
    assert expense.refusal(1024 * MIB, 0) != ""  # spent


def test_what_the_last_points_showed_decides_about_the_next() -> None:
    expense = Expense(0.03, 0, Time())
    expense.wrote(1024 * MIB, 1024 * MIB)
    assert "rewrite about 1024 MiB" in expense.refusal(1024 * MIB, 0)
    assert expense.refusal(10 * MIB, 0) == ""  # little to copy in any case
    for _ in range(10):
        expense.wrote(1 * MIB, 1024 * MIB)
    assert expense.refusal(1024 * MIB, 0) == ""
    assert "4096 MiB of memory" in expense.refusal(4096 * MIB, 0)  # most of it was not there then
    assert "500 MiB of files" in expense.refusal(100 * MIB, 500 * MIB)
