"""Results of a client's tools, and what the code in the sandbox gets of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramet.doors.gateway.errors import ApiError

Content = str | Sequence[Mapping[str, object]] | None


@dataclass(frozen=True, slots=True)
class ClientToolAnswer:
    """The text that a tool's function returns, or raises."""

    text: str
    is_error: bool

    @property
    def digest(self) -> bytes:
        """A digest by which a repeated result is recognised."""
        mark = b"error:" if self.is_error else b"value:"
        return hashlib.sha256(mark + self.text.encode("utf-8", "surrogatepass")).digest()

    @classmethod
    def read(cls, content: Content, is_error: bool) -> ClientToolAnswer:
        """Read a tool_result block: each text on lines of its own, all other blocks as JSON."""
        if content is None:
            return cls("", is_error)
        if isinstance(content, str):
            return cls(content, is_error)
        return cls("\n".join(_text(block) for block in content), is_error)


class AnswerRefused(ApiError):
    """Raised for a tool result that answers no call of this code, or contradicts an earlier one."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


def _text(block: Mapping[str, object]) -> str:
    text = block.get("text")
    if block.get("type") == "text" and isinstance(text, str):
        return text
    return json.dumps(block, ensure_ascii=False)
