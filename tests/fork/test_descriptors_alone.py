"""Descriptors are read from a stopped process and made again in a copy, by themselves: without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.transport import embedded
from tests.fork.descriptors_things import THINGS

_TREE = Path(__file__).parents[2]
_PACKAGES = Path(ramet.__file__).parent.parent  # the installed one: the sources have no compiled parts


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # Pipes and watches are counted for all of one user: pods of an engine would leave too few for one of each kind.
    embedded.close_engine()
    folder = tmp_path_factory.mktemp("things")
    command = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--mount-proc"]
    program = [sys.executable, "-W", "ignore", "-m", "tests.fork.descriptors_reader", str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{_PACKAGES}:{_TREE}"}
    done = subprocess.run([*command, "--kill-child", *program], capture_output=True, text=True, check=False, cwd=_TREE,
                          env=environment, timeout=170)  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_whole_list_of_calls_works(outcome: dict[str, Any]) -> None:
    assert outcome["failure"] is None


def test_reading_leaves_nothing_open_and_the_original_as_it_was(outcome: dict[str, Any]) -> None:
    assert not outcome["leaked"]
    assert outcome["unharmed"]


def test_what_is_lost_is_told(outcome: dict[str, Any]) -> None:
    told = sorted(text.partition(": ")[2] for text in outcome["lost"])
    assert told == [
        "descriptors that travel with its messages",
        "what was sent on 1 connections not yet accepted",
        "what was sent on 1 connections not yet accepted",
    ]


@pytest.mark.parametrize("name", THINGS)
def test_in_the_copy(outcome: dict[str, Any], name: str) -> None:
    assert outcome["copy"].get(name) == "ok"


@pytest.mark.parametrize("name", THINGS)
def test_in_the_original(outcome: dict[str, Any], name: str) -> None:
    assert outcome["original"].get(name) == "ok"
