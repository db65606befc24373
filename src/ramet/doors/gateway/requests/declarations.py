"""The tools that a request declares, and where each of them goes.

code execution entry      -> ordinary tools for the upstream, which the gateway answers
a client's tool           -> the upstream's list, if the model may call it directly
  allowed from code       -> a function in the sandbox, which the description of code_execution names
other server tools        -> the upstream's own: passed on unchanged
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.doors.gateway.errors import ApiError, invalid
from ramet.doors.gateway.kinds import BASH, CODE, OWN_TOOLS
from ramet.doors.gateway.requests.schemas import is_recursive, python_name
from ramet.doors.gateway.requests.tool_texts import (
    PROGRAMMATIC_VERSIONS,
    VERSIONS,
    ContainerFacts,
    tool_names,
    tools_for_upstream,
)
from ramet.doors.gateway.running.cell_run import ClientTool

_ENTRY = re.compile(r"code_execution_(\w+)")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Types of the API's tools that the client carries out: the type only defines the input that the model writes.
_CLIENT_TYPES = ("custom", "bash_", "text_editor_", "computer_", "memory_", "browser_")
_DEFAULT_VERSION = "20260120"


@dataclass(frozen=True)
class DeclaredTools:
    """The tools of a request, sorted."""

    version: str | None = None
    """The version of code execution; None: it is not declared."""
    callables: tuple[ClientTool, ...] = ()
    """The client's tools that code may call."""
    for_upstream: tuple[dict[str, Any], ...] = ()
    client_names: frozenset[str] = frozenset()
    """The names of all tools that the client carries out."""
    others: tuple[str, ...] = ()
    """Types of server tools that only the upstream can carry out."""
    open_ended: bool = False
    """Whether the model may call tools without an entry: those of a toolset, or found by a search."""

    @property
    def own_names(self) -> tuple[str, ...]:
        return () if self.version is None else tool_names(self.version)

    def knows(self, name: object) -> bool:
        return self.open_ended or name in self.client_names


def read_tools(tools: object, surroundings: ContainerFacts | None = None) -> DeclaredTools:
    """Read the field ``tools``. Raises ApiError, in the words of the API where it has some."""
    if tools is None:
        return DeclaredTools()
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise invalid("tools: must be a list of objects")
    return _DeclarationReading(surroundings or ContainerFacts()).read(tools)


@dataclass
class _DeclarationReading:
    surroundings: ContainerFacts
    entry: dict[str, Any] | None = None
    callables: list[ClientTool] = field(default_factory=list)
    callers: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    others: list[str] = field(default_factory=list)
    upstream: list[dict[str, Any] | None] = field(default_factory=list)  # None: the place of the code execution entry
    open_ended: bool = False

    def read(self, tools: list[dict[str, Any]]) -> DeclaredTools:
        for index, tool in enumerate(tools):
            self._one(f"tools.{index}", tool)
        version = self._version()
        if version is not None and (taken := self.names & set(OWN_TOOLS)):
            raise invalid(
                f"tools: {', '.join(sorted(taken))} is a name of code execution, which no other tool can have",
                error_code="tool_name_conflict",
            )
        if len({python_name(tool.name) for tool in self.callables}) < len(self.callables):
            raise invalid("tools: two tools that code may call have the same name in Python")
        return DeclaredTools(
            version=version,
            callables=tuple(self.callables),
            for_upstream=tuple(self._for_upstream(version)),
            client_names=frozenset(self.names),
            others=tuple(self.others),
            open_ended=self.open_ended,
        )

    def _one(self, where: str, tool: dict[str, Any]) -> None:
        kind = tool.get("type")
        kind = kind if isinstance(kind, str) else "custom"
        if kind.startswith("code_execution_"):
            self._read_entry(where, kind, tool)
        elif kind.startswith(_CLIENT_TYPES):
            self._read_client_tool(where, kind, tool)
        else:
            self.others.append(kind)
            self.open_ended = True
            self.upstream.append(_without_code_callers(where, tool))

    def _read_entry(self, where: str, kind: str, tool: dict[str, Any]) -> None:
        found = _ENTRY.fullmatch(kind)
        if found is None or found[1] not in VERSIONS:
            known = ", ".join(f"code_execution_{version}" for version in VERSIONS)
            raise invalid(f"{where}.type: {kind!r} is not a version that this gateway has; it has {known}")
        if "name" not in tool:
            raise invalid(f"{where}.name: Field required")
        if tool["name"] != CODE:
            raise invalid(f"{where}.name: must be 'code_execution'")
        if self.entry is not None:
            raise invalid(f"{where}: code execution is declared twice", error_code="tool_name_conflict")
        self.entry = tool
        self.upstream.append(None)

    def _read_client_tool(self, where: str, kind: str, tool: dict[str, Any]) -> None:
        name = tool.get("name")
        if isinstance(name, str):
            self.names.add(name)
        if "toolset" in kind:
            self.open_ended = True
        callers = _callers(where, tool)
        from_code = {caller for caller in callers if caller != "direct"}
        if from_code:
            self.callables.append(_callable(where, tool))
            self.callers |= from_code
        if "direct" in callers:
            self.upstream.append({key: value for key, value in tool.items() if key != "allowed_callers"})

    def _version(self) -> str | None:
        if self.entry is not None:
            version = str(self.entry["type"]).removeprefix("code_execution_")
            if self.callables and version not in PROGRAMMATIC_VERSIONS:
                raise invalid(
                    f"tools: code cannot call tools in code_execution_{version}: "
                    f"use code_execution_{_DEFAULT_VERSION} or later"
                )
            return version
        if not self.callables:
            return None
        named = sorted(caller.removeprefix("code_execution_") for caller in self.callers)
        return named[-1] if named[-1] in PROGRAMMATIC_VERSIONS else _DEFAULT_VERSION

    def _for_upstream(self, version: str | None) -> Iterable[dict[str, Any]]:
        if version is None:
            yield from (tool for tool in self.upstream if tool is not None)
            return
        own = tools_for_upstream(version, self.callables, self.surroundings)
        if self.entry is None:
            yield from own
        elif self.entry.get("cache_control") is not None:
            own[-1]["cache_control"] = self.entry["cache_control"]
        for tool in self.upstream:
            if tool is None:
                yield from own
            else:
                yield tool


def check_choice(choice: object, tools: DeclaredTools) -> None:
    """Refuse a tool choice that is not possible with calls from code. Raises ApiError."""
    if not isinstance(choice, dict) or not tools.callables:
        return
    direct = {str(tool.get("name")) for tool in tools.for_upstream}
    if choice.get("type") == "tool" and str(choice.get("name")) in tools.client_names - direct:
        raise invalid(f"tool_choice: {choice['name']!r} can only be called from code, so it cannot be forced")
    if choice.get("disable_parallel_tool_use"):
        raise invalid("tool_choice: disable_parallel_tool_use cannot be used with programmatic tool calling")


def upstream_choice(choice: object, tools: DeclaredTools, *, first: bool) -> object:
    """The tool choice for the upstream.

    Only the first sample of a turn may force a call, or the turn would never end.
    """
    if not isinstance(choice, dict) or tools.version is None:
        return choice
    if choice.get("type") in ("any", "tool") and not first:
        return {**{key: value for key, value in choice.items() if key != "name"}, "type": "auto"}
    if choice.get("type") == "tool" and choice.get("name") == CODE and CODE not in tools.own_names:
        return {**choice, "name": BASH}
    return choice


def _callers(where: str, tool: Mapping[str, Any]) -> list[str]:
    callers = tool.get("allowed_callers")
    if callers is None:
        return ["direct"]
    if not isinstance(callers, list) or not callers:
        raise invalid(f"{where}.allowed_callers: must be a list that is not empty")
    for caller in callers:
        if caller != "direct" and (not isinstance(caller, str) or _ENTRY.fullmatch(caller) is None):
            raise invalid(f"{where}.allowed_callers: {caller!r} is neither 'direct' nor a version of code execution")
    return callers


def _callable(where: str, tool: Mapping[str, Any]) -> ClientTool:
    name = tool.get("name")
    if not isinstance(name, str) or _TOOL_NAME.fullmatch(name) is None:
        raise invalid(f"{where}.name: a tool that code may call has a name of 1 to 64 letters, digits, '_' and '-'")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise invalid(f"{where}.input_schema: a tool that code may call needs the schema of an object")
    if tool.get("strict"):
        raise _not_with_code(where, "strict: true")
    if is_recursive(schema):
        raise invalid(
            f"{where}.input_schema: Circular $ref detected. A schema that refers to itself cannot be used with "
            "programmatic tool calling (allowed_callers)"
        )
    return ClientTool(name, str(tool.get("description") or ""), {"type": "object", **schema})


def _not_with_code(where: str, what: str) -> ApiError:
    return invalid(f"{where}: {what} cannot be used with programmatic tool calling (allowed_callers)")


def _without_code_callers(where: str, tool: dict[str, Any]) -> dict[str, Any]:
    """Remove callers from a server tool of the upstream, because our code cannot call it."""
    if "allowed_callers" not in tool:
        return tool
    if "direct" not in _callers(where, tool):
        raise invalid(f"{where}: code cannot call server tools of the upstream")
    return {**tool, "allowed_callers": ["direct"]}
