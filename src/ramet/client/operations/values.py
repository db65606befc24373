"""Operations on global variables of a sandbox: get and set their values, as encoded bytes."""

from __future__ import annotations

from ramet.client.operations.steps import Operation, carry_out, check_may_wait, final, next_frame
from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.protocol.values.value_bounds import VALUE_BYTES_AT_MOST, check_name


def get_value(sandbox_id: str, name: str) -> Operation[bytes]:
    """Return the value of a global variable; ``client/value_decoding.py`` decodes it."""
    known = check_name(name)
    check_may_wait(sandbox_id)
    return _get_value(encode(calls.GET_VALUE, {"sandbox": sandbox_id, "name": known}))


def _get_value(request: bytes) -> Operation[bytes]:
    parts: list[bytes] = []
    total_bytes = 0
    yield request
    while (frame := (yield from next_frame())).kind == calls.CHUNK:
        parts.append(frame.blob)
        total_bytes += len(frame.blob)
        if total_bytes > VALUE_BYTES_AT_MOST:
            raise ProtocolError(f"a value of more than {VALUE_BYTES_AT_MOST} bytes")
    final(frame)
    return b"".join(parts)


def set_value(sandbox_id: str, name: str, path: str | None, data: bytes) -> Operation[None]:
    """Assign an encoded value to a name that ``value_assignment`` has checked: ``data``, or a file of the sandbox."""
    check_may_wait(sandbox_id)
    return carry_out(encode(calls.SET_VALUE, {"sandbox": sandbox_id, "name": name, "path": path}, data))
