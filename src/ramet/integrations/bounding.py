"""Cuts long texts in the middle, so that a model reads their beginning and their end."""

from __future__ import annotations

from collections import deque


def bounded(text: str, limit: int) -> str:
    """The text, or its beginning and its end with a note between them."""
    if len(text) <= limit:
        return text
    head, tail = _shares(limit)
    return _joined(text[:head], len(text) - head - tail, text[-tail:])


class Bounded:
    """Keeps the beginning and the end of a text that arrives in pieces, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._head_limit, self._tail_limit = _shares(limit)
        self._head: list[str] = []
        self._head_length = 0
        self._tail: deque[str] = deque()
        self._tail_length = 0
        self.length = 0

    def add(self, piece: str) -> None:
        self.length += len(piece)
        room = self._head_limit - self._head_length
        if room > 0:
            self._head.append(piece[:room])
            self._head_length += len(self._head[-1])
            piece = piece[room:]
        if piece:
            self._tail.append(piece[-self._tail_limit :])
            self._tail_length += len(self._tail[-1])
            while self._tail_length - len(self._tail[0]) >= self._tail_limit:
                self._tail_length -= len(self._tail.popleft())

    def text(self) -> str:
        head, tail = "".join(self._head), "".join(self._tail)[-self._tail_limit :]
        left_out = self.length - len(head) - len(tail)
        return _joined(head, left_out, tail) if left_out else head + tail


def _shares(limit: int) -> tuple[int, int]:
    """How much of the limit the beginning and the end get. The end gets more: results and errors stand there."""
    head = limit * 2 // 5
    return head, limit - head


def _joined(head: str, left_out: int, tail: str) -> str:
    return f"{head}\n... {left_out} characters left out ...\n{tail}"
