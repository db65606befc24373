"""Assigns a value to a name in a sandbox: small values travel in the request itself, others through a file."""

from __future__ import annotations

from collections.abc import Generator
from importlib.util import find_spec
from os import urandom
from typing import Literal, NamedTuple, TypeAlias

from ramet.errors import LimitReached, ValueUnsupported
from ramet.protocol.tools.values import CannotCross, EncodedValue, encode_value
from ramet.protocol.values.value_bounds import DATA_BYTES_AT_MOST, INLINE_BYTES, check_name

# The folder that also holds output that was too long for a result.
_FOLDER = "/var/tmp/ramet"


class UploadValue(NamedTuple):
    """Write the value to this file of the sandbox."""

    path: str
    value: EncodedValue
    kind: Literal["upload"] = "upload"


class AssignName(NamedTuple):
    """Assign the value to the name: from the file, or from ``data`` if there is no file."""

    name: str
    path: str | None
    data: bytes
    kind: Literal["assign"] = "assign"


class RemoveFile(NamedTuple):
    """Remove the file, if it is still there."""

    path: str
    kind: Literal["remove"] = "remove"


AssignmentStep: TypeAlias = UploadValue | AssignName | RemoveFile
Assignment: TypeAlias = Generator[AssignmentStep, None, None]


def assign(name: str, value: object) -> Assignment:
    """Return the steps of an assignment; the caller throws in the error of a step that fails.

    Raises InvalidArgument, ValueUnsupported or LimitReached at once for a name or value that is not possible.
    """
    known = check_name(name)
    # Only the sandbox knows which formats it can read. Tables go as Arrow first, if this side can write that.
    plain = ("frame", "npy")
    formats: list[tuple[str, ...]] = [("arrow", *plain), plain] if find_spec("pyarrow") is not None else [plain]
    encoded = _encoded(known, value, formats[0])
    return _assign(known, value, encoded, formats[1:])


def _assign(name: str, value: object, encoded: EncodedValue, other_formats: list[tuple[str, ...]]) -> Assignment:
    while True:
        try:
            yield from _send(name, encoded)
        except ValueUnsupported as error:
            if error.details.get("kind") != "format" or not other_formats:
                raise
            encoded = _encoded(name, value, other_formats.pop(0))
        else:
            return


def _send(name: str, encoded: EncodedValue) -> Assignment:
    if encoded.size_bytes <= INLINE_BYTES:
        yield AssignName(name, None, encoded.whole())
        return
    path = f"{_FOLDER}/value-{urandom(16).hex()}"
    try:
        yield UploadValue(path, encoded)
        yield AssignName(name, path, b"")
    except GeneratorExit:
        raise
    except BaseException:  # also Ctrl-C: a file of up to 100 MiB must not stay behind
        yield RemoveFile(path)
        raise


def _encoded(name: str, value: object, formats: tuple[str, ...]) -> EncodedValue:
    try:
        encoded = encode_value(value, formats, any_keys=True)
    except CannotCross as error:
        raise ValueUnsupported(
            f"{error.told(name)}, which cannot be given to a sandbox",
            hint="give plain data, bytes, an array of numpy or a DataFrame; upload anything else as a file",
        ) from None
    if encoded.size_bytes > DATA_BYTES_AT_MOST:
        raise LimitReached(
            f"{name} has {encoded.size_bytes} bytes, and at most {DATA_BYTES_AT_MOST} are possible",
            hint="write it to a file and upload that",
        )
    return encoded
