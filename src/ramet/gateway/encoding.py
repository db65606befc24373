"""JSON as it leaves the gateway."""

from __future__ import annotations

import json


def to_json(value: object) -> bytes:
    """Half of a surrogate pair, which a careless upstream can send, has no UTF-8: it becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
