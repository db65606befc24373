"""Maps the end of a cell to the outcome that the metrics count."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.errors import EngineClosed, EngineLost, ExecutionCancelled, RametError, SandboxLost
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, FrameDecoder

CANCELLED = "cancelled"  # without a result
REFUSED = "refused"  # before it was queued

_PREFIX_BYTES = 10
_KIND_AT = 5
_UNUSUAL = (b'"cause"', b'"state"', b'"interrupted"')


def of_result(header: Mapping[str, object]) -> str:
    if header.get("cause") == "timeout":
        return "timeout"
    if header.get("state") in ("lost", "restored"):
        return "lost"
    if header.get("interrupted"):
        return "interrupted"
    return "ok" if header.get("exit_code") == 0 else "failed"


def of_error(error: RametError) -> str:
    begun = isinstance(error, ExecutionCancelled | EngineLost | EngineClosed | SandboxLost)
    return CANCELLED if begun else REFUSED


def of_last_frame(frame: bytes) -> str:
    """The outcome in an encoded frame. Recognises the usual result by its bytes, to save decoding it."""
    kind = frame[_KIND_AT] if len(frame) > _KIND_AT else None
    if kind == calls.ERROR:
        told = next(FrameDecoder(FROM_ENGINE).feed(frame), None)
        return CANCELLED if told is None else of_error(calls.read_error(told.header))
    if kind != calls.RESULT:
        return CANCELLED
    length = int.from_bytes(frame[_KIND_AT + 1 : _PREFIX_BYTES], "little")
    header = frame[_PREFIX_BYTES : _PREFIX_BYTES + length]
    if not any(word in header for word in _UNUSUAL):
        return "ok" if b'"exit_code":0,' in header else "failed"
    decoded = next(FrameDecoder(FROM_ENGINE).feed(frame), None)
    return "failed" if decoded is None else of_result(decoded.header)
