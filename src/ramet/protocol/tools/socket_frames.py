"""The frames between a tool function in a sandbox and the engine, over the sandbox's tool socket.

    CALL  ->  ANSWER [MORE ...]

A connection carries one call at a time, and any number of them one after another. The engine trusts nothing it receives
here: any process of the sandbox may have written it.
"""

from __future__ import annotations

import json
import math
from typing import Literal, NoReturn, get_args

from ramet.protocol.frames import Bounds
from ramet_guest import wire

# sandbox -> engine
CALL = wire.TOOL_CALL
# engine -> sandbox
ANSWER = wire.TOOL_ANSWER
MORE = wire.TOOL_MORE

# How a call failed: the tool raised; its arguments are wrong; too late; not allowed now; no such tool; no client
# answers calls any more; the caller no longer waits.
FailureKind = Literal["error", "invalid", "timeout", "refused", "unknown", "gone", "cancelled"]
FAILURE_KINDS: frozenset[str] = frozenset(get_args(FailureKind))

# A header is a name and a few words, so this is plenty.
FROM_SANDBOX = Bounds(header_bytes=8 * 1024, blob_bytes=wire.TOOL_ARGUMENT_BYTES_AT_MOST)
VALUE_BYTES_AT_MOST = 1024 * 1024 * 1024


def read_arguments(text: str) -> object:
    """Parse the arguments of a call. Raise ValueError or RecursionError for anything that is not JSON; NaN is not.

    The client that runs a tool and the engine that records the call use the same parser: nothing reaches a tool that
    its record does not show.
    """
    return _decode(text)


def _number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text:.40} is no number of JSON that can be told")


_decode = json.JSONDecoder(parse_float=_number, parse_constant=_refuse).decode
