"""Variables on their way from one sandbox to another: pickled in the one, unpickled in the other, and nowhere else.

All that travel together are one pickle, so that what they share is shared again afterwards. Functions and classes of
cells do not travel. An object of such a class does if the receiver has the same class.

    u32 length of the header | header: {"names": [...], "needs": {qualified name: digest}} | pickle
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import time
import types
from importlib import import_module
from typing import Any

from ramet_guest import wire
from ramet_guest.comparing.fingerprints import OutOfTime, Walk
from ramet_guest.comparing.pieces import name_of
from ramet_guest.values.tables import ValueRefused

_PROTOCOL = 5
_MAIN = "__main__"
_DIGEST_SECONDS = 2.0
_REASON_CHARACTERS = 200
_NOT_ALONE = "is a function or a class of a cell: run the cell that defines it in the receiving sandbox"


class Parcel:
    """A file of pickle's, in memory. Raises ValueRefused when more comes than may travel."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self._bytes = 0

    def write(self, data: Any) -> int:
        size = len(data) if isinstance(data, bytes) else memoryview(data).nbytes
        self._bytes += size
        if self._bytes > wire.VALUE_DATA_BYTES_AT_MOST:
            raise ValueRefused("large", f"has more than {wire.VALUE_DATA_BYTES_AT_MOST} bytes")
        self.parts.append(bytes(data))
        return size


class Packer(pickle.Pickler):
    """Notes the functions and classes of cells that a pickle refers to: the receiver must have them."""

    def __init__(self, parcel: Parcel) -> None:
        super().__init__(parcel, _PROTOCOL)
        self.needs: dict[str, Any] = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) is types.ModuleType and sys.modules.get(value.__name__) is value:
            return import_module, (value.__name__,)
        if isinstance(value, (types.FunctionType, type)) and getattr(value, "__module__", None) == _MAIN:
            self.needs[value.__qualname__] = value
        return NotImplemented


def pack(namespace: dict[str, Any], names: list[str]) -> list[bytes | memoryview]:
    """Returns the values of these names, to be sent. Raises ValueRefused, which names all that cannot travel."""
    missing = [name for name in names if name not in namespace]
    if missing:
        raise ValueRefused("unknown", f"{', '.join(missing)}: not defined in the sandbox to take from")
    values = {name: namespace[name] for name in names}
    try:
        parcel, needs = packed(values)
    except Exception as error:
        raise refusal(values, error) from None
    header = json.dumps({"names": names, "needs": {name: digest(value) for name, value in needs.items()}}).encode()
    return [len(header).to_bytes(4, "little"), header, *parcel.parts]


def packed(values: dict[str, Any]) -> tuple[Parcel, dict[str, Any]]:
    for value in values.values():
        if isinstance(value, (types.FunctionType, type)) and getattr(value, "__module__", None) == _MAIN:
            raise ValueRefused("unsupported", _NOT_ALONE)
    parcel = Parcel()
    packer = Packer(parcel)
    packer.dump(values)
    return parcel, packer.needs


def refusal(values: dict[str, Any], error: Exception) -> ValueRefused:
    """Finds out which of the values cannot travel: each is tried alone."""
    reasons = []
    kind = error.kind if isinstance(error, ValueRefused) else "unsupported"
    for name, value in values.items():
        try:
            packed({name: value})
        except Exception as cause:
            reasons.append(f"{name} {reason(cause)}")
    if not reasons:  # together they are too much
        reasons = [f"{', '.join(values)} {reason(error)}"]
    return ValueRefused(kind, "; ".join(reasons))


def reason(error: Exception) -> str:
    if isinstance(error, ValueRefused):
        return str(error)
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return f"cannot be pickled: {type(error).__name__}: {text}"[:_REASON_CHARACTERS]


def digest(value: Any) -> str:
    """Returns the digest of a class or a function, by which the receiver knows whether it has the same."""
    try:
        return Walk(time.monotonic, time.monotonic() + _DIGEST_SECONDS).digest(value)
    except OutOfTime:
        return ""


def unpack(data: bytes, names: list[str]) -> dict[str, Any]:
    """Makes the values of what another sandbox has packed. Runs its code. Raises ValueRefused."""
    end = 4 + int.from_bytes(data[:4], "little")
    header = json.loads(bytes(data[4:end]))
    for name, known in header["needs"].items():
        check_definition(name, known)
    pickled = io.BytesIO(data)  # which does not copy it
    pickled.seek(end)
    values = pickle.Unpickler(pickled).load()
    # The other sandbox chooses what is in there: no name but those that were asked for.
    if type(values) is not dict or values.keys() != set(names):
        raise ValueRefused("format", f"came as something else: {name_of(type(values))}")
    return values


def check_definition(name: str, known: str) -> None:
    found: Any = sys.modules[_MAIN]
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ValueRefused(
            "unsupported", f"need {name}, which the receiving sandbox does not have: run the cell that defines it there"
        )
    if known and digest(found) not in ("", known):
        raise ValueRefused(
            "unsupported", f"need {name}, which the receiving sandbox defines otherwise: run the same cell there"
        )
