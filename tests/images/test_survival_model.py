"""Whatever happens to a persistent sandbox and its engine, it is as its model: random steps, and kill -9 among them."""

from __future__ import annotations

import pytest

from tests.images.stores import ImageFolder

_PROGRAM = "import sys; from tests.images.survival import run; run(int(sys.argv[1]), int(sys.argv[2]))"


@pytest.mark.promise("persistent-survives")
def test_a_sandbox_survives_a_few_random_steps(warm_store: ImageFolder) -> None:
    assert warm_store.program(_PROGRAM, "5", "8") == "survived 8\n"


@pytest.mark.deep("fuzz")
@pytest.mark.parametrize("seed", range(10, 22))
def test_a_sandbox_survives_many_random_steps(warm_store: ImageFolder, seed: int) -> None:
    assert warm_store.program(_PROGRAM, str(seed), "40") == "survived 40\n"
