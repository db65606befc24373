"""The kinds of blocks, and how the ids of a call map between client and upstream.

client                                                  upstream
server_tool_use   srvtoolu_X  code_execution      <->   tool_use     toolu_X  code_execution
code_execution_tool_result    srvtoolu_X          <->   tool_result  toolu_X
tool_use  toolu_Y  with the caller srvtoolu_X           nothing: it happened inside the code
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

AnyBlock = dict[str, Any]
Message = dict[str, Any]

CODE = "code_execution"
BASH = "bash_code_execution"
EDITOR = "text_editor_code_execution"
OWN_TOOLS = (CODE, BASH, EDITOR)
RESULT_TYPES = frozenset(f"{name}_tool_result" for name in OWN_TOOLS)

# Used even where the request's tool is a later version, because the published client knows this one.
CALLER_TYPE = "code_execution_20260120"
_CALLER_TYPES = "code_execution_"

_OWN_PREFIX, _UPSTREAM_PREFIX = "srvtoolu_", "toolu_"
# Ids of the upstream that are random enough are kept. Some upstreams count, or start anew with each answer.
_TRUSTED_ID = re.compile(r"toolu_[A-Za-z0-9_]{16,200}")
_TRUSTED_MESSAGE_ID = re.compile(r"msg_[A-Za-z0-9_-]{16,200}")


def is_own_use(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "server_tool_use" and block.get("name") in OWN_TOOLS


def is_own_result(block: Mapping[str, Any]) -> bool:
    return block.get("type") in RESULT_TYPES


def is_programmatic(block: Mapping[str, Any]) -> bool:
    """Whether a block is a call of a client's tool that code made."""
    return block.get("type") == "tool_use" and calling_cell(block) is not None


def calling_cell(block: Mapping[str, Any]) -> str | None:
    """The id of the cell whose code made a call."""
    caller = block.get("caller")
    if not isinstance(caller, dict) or not str(caller.get("type", "")).startswith(_CALLER_TYPES):
        return None
    return str(caller.get("tool_id", ""))


def content_blocks(message: Mapping[str, Any]) -> list[AnyBlock]:
    """The content of a message as blocks, in whichever of the two forms it was written."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def client_id(upstream_id: object) -> str:
    """The id of a cell for the client, from the id of the upstream's call."""
    if isinstance(upstream_id, str) and _TRUSTED_ID.fullmatch(upstream_id):
        return _OWN_PREFIX + upstream_id.removeprefix(_UPSTREAM_PREFIX)
    return _OWN_PREFIX + _random()


def upstream_id(own_id: str) -> str:
    return _UPSTREAM_PREFIX + own_id.removeprefix(_OWN_PREFIX) if own_id.startswith(_OWN_PREFIX) else own_id


def message_id(upstream_id: object = None) -> str:
    """A new message id. Threads are found by it, so it must be unique."""
    if isinstance(upstream_id, str) and _TRUSTED_MESSAGE_ID.fullmatch(upstream_id):
        return upstream_id
    return "msg_" + _random()


def _random() -> str:
    return "01" + secrets.token_hex(11)
