"""Files that copies began with: given up when they are too many, and never while something uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ramet.isolation.files.ancestors import MOST_BYTES_OF_ONE, MOST_IMAGES, KeptAncestors

_WAIT_SECONDS = 10


class Image:
    """The files of an ended snapshot."""

    is_empty = False
    before = None
    number = 0
    source: object = None

    def __init__(self, copied_bytes: int = 1, while_given_up: Callable[[], object] = lambda: None) -> None:
        self.copied_bytes = copied_bytes
        self.gone = False
        self._while_given_up = while_given_up

    def give_up(self) -> None:
        self._while_given_up()
        self.gone = True


def test_the_oldest_are_given_up_when_they_are_too_many() -> None:
    kept = KeptAncestors()
    images = [Image() for _ in range(MOST_IMAGES + 2)]
    for image in images:
        kept.add(image)
    assert [image.gone for image in images] == [True, True] + [False] * MOST_IMAGES


def test_one_that_is_too_large_is_given_up_at_once_or_when_its_use_ends() -> None:
    kept, unused, used = KeptAncestors(), Image(MOST_BYTES_OF_ONE + 1), Image(MOST_BYTES_OF_ONE + 1)
    kept.add(unused)
    assert unused.gone
    with kept.using(used) as there:
        kept.add(used)
        assert there
        assert not used.gone
    assert used.gone


def test_one_that_is_being_given_up_is_not_taken_into_use() -> None:
    kept = KeptAncestors()
    seen: list[bool] = []
    looked = threading.Event()

    def use() -> None:
        with kept.using(image) as there:
            seen.append(there)
        looked.set()

    def meanwhile() -> None:
        other.start()
        looked.wait(0.2)  # it cannot look before the files are gone

    other = threading.Thread(target=use)
    image = Image(MOST_BYTES_OF_ONE + 1, meanwhile)
    kept.add(image)
    assert looked.wait(_WAIT_SECONDS)
    other.join(_WAIT_SECONDS)
    assert seen == [False]
