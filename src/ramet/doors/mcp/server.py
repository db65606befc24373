"""The MCP server: offers the tools and runs them in sessions, over any transport."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.metadata import version

from mcp import MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ramet import EngineClosed, EngineLost, RametError, SandboxClosed
from ramet.doors.mcp.actions import ToolRequest
from ramet.doors.mcp.answers import answer
from ramet.doors.mcp.cells import Report
from ramet.doors.mcp.session_store import SessionCaller, SessionStore
from ramet.doors.mcp.tools import INSTRUCTIONS, TOOLS, McpTool
from ramet.integrations.reach import NO_INTERNET
from ramet.integrations.results import Shown

Context = ServerRequestContext[SessionStore]

_log = logging.getLogger(__name__)
_BY_NAME = {tool.name: tool for tool in TOOLS}


def make_server(
    running: Callable[[], AbstractAsyncContextManager[SessionStore]],
    *,
    prefers_handshake: bool = False,
    reach: str = NO_INTERNET,
) -> Server[SessionStore]:
    """Make a server. ``running`` gives the keeper of its sessions, for as long as the server runs.

    ``reach`` tells models what the sandboxes can connect to. ``prefers_handshake`` makes clients that speak several
    versions of the protocol take one with sessions.
    """

    @asynccontextmanager
    async def lifespan(_: Server[SessionStore]) -> AsyncIterator[SessionStore]:
        async with running() as keeping:
            yield keeping

    instructions = f"{INSTRUCTIONS} {reach}"
    server: Server[SessionStore] = Server(
        "ramet",
        title="Ramet sandboxes",
        version=version("ramet"),
        instructions=instructions,
        lifespan=lifespan,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
    )
    if prefers_handshake:
        server.add_request_handler("server/discover", types.RequestParams, partial(_discover, server, instructions))
    return server


async def _discover(
    server: Server[SessionStore], instructions: str, context: Context, params: types.RequestParams
) -> types.DiscoverResult:
    """Name only the versions with sessions, so that a client which speaks several takes one of them.

    A client that asks for a later version is served all the same.
    """
    return types.DiscoverResult(
        supported_versions=list(HANDSHAKE_PROTOCOL_VERSIONS),
        capabilities=server.get_capabilities(),
        instructions=instructions,
    )


async def _list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[tool.face() for tool in TOOLS])


async def _call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    tool = _BY_NAME.get(params.name)
    if tool is None:
        raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}")
    try:
        return await _called(tool, context, params.arguments or {})
    except ValidationError as error:
        return answer(Shown(_explained(error), failed=True))
    except RametError as error:
        return answer(Shown(str(error), failed=True))


async def _called(tool: McpTool, context: Context, given: dict[str, object]) -> types.CallToolResult:
    arguments = tool.arguments.model_validate(given)
    async with context.lifespan_context.session(_caller(context), arguments.named) as session:
        call = ToolRequest(session, _report(context))
        try:
            made = await tool.action(call, arguments)
        except (SandboxClosed, EngineClosed, EngineLost):
            await session.infos()  # forgets sandboxes that have ended, so that the next call gets a new default one
            raise
        _tell_which(made, call, arguments.named)
        return made


def _caller(context: Context) -> SessionCaller:
    """The key and the session id of the handshake. Both are known over HTTP only."""
    request = context.request
    if request is None:
        return SessionCaller()
    user = request.scope.get("user")
    owner = user.access_token.client_id if isinstance(user, AuthenticatedUser) else ""
    if context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        return SessionCaller(owner, request.headers.get("mcp-session-id"))
    # Later versions have no sessions, and the SDK has not checked the header: it could name another client's session.
    return SessionCaller(owner)


def _report(context: Context) -> Report | None:
    if context.meta is None or context.meta.get("progress_token") is None:
        return None

    async def report(count: float, text: str) -> None:
        await context.session.report_progress(count, message=text)

    return report


def _tell_which(made: types.CallToolResult, call: ToolRequest, named: str | None) -> None:
    """Add the id of the sandbox to an answer. A client without a session gets it in the text, too: it must name it in
    later calls.
    """
    if call.sandbox_id is None:
        return
    facts = {} if made.meta is None else dict(made.meta.get("ramet", {}))
    made.meta = {"ramet": {**facts, "sandbox": call.sandbox_id}}
    if call.session.found_by_id and named is None:
        note = f"(sandbox {call.sandbox_id}: give this id as `sandbox` in the next calls to continue with this state)"
        made.content.append(types.TextContent(text=note))


def _explained(error: ValidationError) -> str:
    """The wrong arguments, one in a line, for the model that wrote them."""
    return "\n".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
