"""A web application with a sandbox for each of its users.

    pip install fastapi uvicorn
    uvicorn fastapi_app:app --app-dir examples --timeout-graceful-shutdown 10
    python examples/fastapi_app.py      # or serve it for a moment, play two users, and stop

What it shows:

- a user's sandbox is made by the first request and found again by the next: variables and files stay;
- users never share a sandbox, and each sandbox has limits of memory, processes, CPU, disk and time;
- a sandbox that was not used for a while ends by itself, and the next request gets a fresh one and is told so;
- output can be streamed, and a client that hangs up interrupts its cell;
- when the application stops, all sandboxes are closed.

``AsyncSandbox`` runs in this process. If several worker processes are to share the sandboxes, start ``ramet serve`` and
set ``RAMET_URL``: nothing else changes, except that you keep the id of each user's sandbox and ``connect`` to it.
"""

import asyncio
import base64
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

from ramet import AsyncSandbox, Event, InvalidArgument, LimitReached, RametError, Result, SandboxClosed

SANDBOXES_AT_MOST = 50
IDLE_SECONDS = 900.0
USERS_BY_TOKEN = {"token-of-ada": "ada", "token-of-bob": "bob"}  # put your own authentication here


class UserSandboxes:
    """The sandbox of each user. Made when it is first needed, and again after it has ended."""

    def __init__(self, at_most: int = SANDBOXES_AT_MOST, idle_seconds: float = IDLE_SECONDS) -> None:
        self._at_most = at_most
        self._idle_seconds = idle_seconds
        # A task, so that two requests of one user at the same moment make one sandbox.
        self._by_user: dict[str, asyncio.Task[AsyncSandbox]] = {}

    async def of(self, user: str) -> tuple[AsyncSandbox, bool]:
        """The user's sandbox, and whether it is a fresh one. Raises LimitReached when there are too many."""
        while True:
            task = self._by_user.get(user)
            fresh = task is None
            if task is None:
                task = await self._begin(user)
            try:
                # Shielded: a client that hangs up meanwhile must not cancel what other requests wait for.
                sandbox = await asyncio.shield(task)
                await sandbox.info()
                return sandbox, fresh
            except SandboxClosed:  # its idle timeout has passed: make another
                await self._drop(user, task)
            except RametError:
                await self._drop(user, task)
                raise

    async def _begin(self, user: str) -> asyncio.Task[AsyncSandbox]:
        if len(self._by_user) >= self._at_most:
            await self._drop_ended()
        if user in self._by_user:  # another request of this user was quicker
            return self._by_user[user]
        if len(self._by_user) >= self._at_most:
            raise LimitReached(f"{self._at_most} users have a sandbox already", hint="try again later")
        task = self._by_user[user] = asyncio.create_task(self._make())
        return task

    async def _make(self) -> AsyncSandbox:
        return await AsyncSandbox.create(
            memory_mib=512, pids=64, cpus=1, disk_mib=256, idle_timeout_seconds=self._idle_seconds
        )

    async def _drop(self, user: str, task: asyncio.Task[AsyncSandbox]) -> None:
        if self._by_user.get(user) is task:
            await self.close(user)

    async def _drop_ended(self) -> None:
        made = [(user, task) for user, task in self._by_user.items() if task.done()]  # before the list is read
        living = {row.id for row in await AsyncSandbox.list_all()}
        for user, task in made:
            if task.exception() is not None or task.result().id not in living:
                await self._drop(user, task)

    async def close(self, user: str) -> None:
        task = self._by_user.pop(user, None)
        if task is not None:
            with suppress(RametError):  # it was never made, or has ended
                await (await asyncio.shield(task)).close()

    async def close_all(self) -> None:
        for user in list(self._by_user):
            await self.close(user)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.sandboxes = UserSandboxes()
    try:
        yield
    finally:
        await app.state.sandboxes.close_all()


app = FastAPI(title="A Python for each user", lifespan=lifespan)


def current_user(credentials: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    user = USERS_BY_TOKEN.get(credentials.credentials)
    if user is None:
        raise HTTPException(401, "unknown token")
    return user


def all_sandboxes(request: Request) -> UserSandboxes:
    sandboxes: UserSandboxes = request.app.state.sandboxes
    return sandboxes


User = Annotated[str, Depends(current_user)]
Sandboxes = Annotated[UserSandboxes, Depends(all_sandboxes)]


class Cell(BaseModel):
    code: str = Field(max_length=100_000)
    timeout_seconds: float = Field(default=30, gt=0, le=60)


@app.post("/run")
async def run(cell: Cell, user: User, sandboxes: Sandboxes) -> dict[str, Any]:
    """Run a cell and answer when it has ended."""
    sandbox, fresh = await sandboxes.of(user)
    return as_json(await sandbox.run_code(cell.code, timeout=cell.timeout_seconds)) | {"fresh": fresh}


@app.post("/stream")
async def stream(cell: Cell, user: User, sandboxes: Sandboxes) -> StreamingResponse:
    """Run a cell and answer with a JSON object a line, as things happen."""
    sandbox, _ = await sandboxes.of(user)

    async def lines() -> AsyncIterator[str]:
        # Closing the stream early, as when the client hangs up, interrupts the cell.
        async with aclosing(sandbox.run_code_stream(cell.code, timeout=cell.timeout_seconds)) as events:
            try:
                async for event in events:
                    yield json.dumps(event_as_json(event)) + "\n"
            except RametError as error:  # the status was sent long ago
                yield json.dumps({"type": "error", "message": error.message}) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@app.post("/interrupt")
async def interrupt(user: User, sandboxes: Sandboxes) -> dict[str, bool]:
    """Interrupt the running cell, as Ctrl-C does."""
    sandbox, _ = await sandboxes.of(user)
    return {"interrupted": await sandbox.interrupt()}


@app.delete("/sandbox", status_code=204)
async def reset(user: User, sandboxes: Sandboxes) -> None:
    """Close the user's sandbox; the next cell starts in a new one."""
    await sandboxes.close(user)


@app.exception_handler(RametError)
async def failed(_: Request, error: Exception) -> JSONResponse:
    """Our side failed, not the user's code. A failing cell is an ordinary answer with ``ok: false``."""
    if isinstance(error, LimitReached):
        return JSONResponse({"error": error.message}, 503, headers={"Retry-After": "30"})
    if isinstance(error, InvalidArgument):
        return JSONResponse({"error": str(error)}, 400)
    if isinstance(error, SandboxClosed):  # ended or reset in the middle of the cell
        return JSONResponse({"error": error.message}, 409)
    return JSONResponse({"error": "the sandbox failed"}, 500)


def event_as_json(event: Event) -> dict[str, Any]:
    match event.type:
        case "stdout" | "stderr":
            return {"type": event.type, "data": event.data}
        case "result":
            return {"type": "result", "text": event.result.text}
        case "clear":
            return {"type": "clear", "wait": event.wait}
        case "exit":
            return {"type": "exit", "code": event.code}


def as_json(result: Result) -> dict[str, Any]:
    images = [base64.b64encode(one.png).decode() for one in result.results if one.png is not None]
    return {
        "ok": result.ok,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "value": result.value,
        "cause": result.cause,
        "images": images,
    }


# --- served for a moment, with two users -----------------------------------------------------------------------------


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=10))
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    serving.start()
    try:
        play(url)
    finally:
        server.should_exit = True
        serving.join()
    print("stopped; all sandboxes are closed")


def play(url: str) -> None:
    print("ada:", post(f"{url}/run", "ada", "x = 6; x * 7"))
    print("ada:", post(f"{url}/run", "ada", "x / 0").splitlines()[-1][:150])
    print("ada:", post(f"{url}/run", "ada", "x"))
    print("bob:", post(f"{url}/run", "bob", "'x' in globals()"))
    print("bob, streaming:", post(f"{url}/stream", "bob", "for i in range(2): print(i)").splitlines())
    try:
        post(f"{url}/run", "eve", "1")
    except urllib.error.HTTPError as error:
        with error:
            print("eve:", error.code, error.read().decode())


def post(url: str, user: str, code: str) -> str:
    headers = {"Authorization": f"Bearer token-of-{user}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps({"code": code}).encode(), headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback, whatever HTTP_PROXY says
    with direct.open(request, timeout=60) as answer:
        body: bytes = answer.read()
    return body.decode()


if __name__ == "__main__":
    main()
