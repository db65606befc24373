"""JSON as the gateway sends it."""

from __future__ import annotations

import json


def to_json(value: object) -> bytes:
    """Encode as UTF-8. A lone surrogate, which a careless upstream can send, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
