"""A model that answers at once, over HTTP: first with a call of the code execution tool, then with a text.

`python -m bench.upstream` serves it; `python -m bench.upstream PROXIED_URL` is a plain reverse proxy in front of it.
Both print their address.
"""

import json
import socket
import sys

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

CODE = "print(sum(n * n for n in range(100)))"
PRINTED = "328350\n"


async def _model(request: Request) -> Response:
    asked = json.loads(await request.body())
    last = asked["messages"][-1]["content"]
    answered = isinstance(last, list) and any(block["type"] == "tool_result" for block in last)
    content: dict[str, object] = {"type": "text", "text": "done"}
    if not answered:
        content = {"type": "tool_use", "id": "toolu_bench", "name": "code_execution", "input": {"code": CODE}}
    return JSONResponse(
        {
            "id": "msg_bench",
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "content": [content],
            "stop_reason": "end_turn" if answered else "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 10},
        }
    )


def _proxy(url: str) -> Starlette:
    client = httpx.AsyncClient(base_url=url, timeout=60)

    async def pass_on(request: Request) -> Response:
        headers = {"content-type": "application/json"}
        answer = await client.post(request.url.path, content=await request.body(), headers=headers)
        return Response(answer.content, answer.status_code, headers)

    return Starlette(routes=[Route("/v1/messages", pass_on, methods=["POST"])])


def main() -> None:
    app = (
        _proxy(sys.argv[1])
        if len(sys.argv) > 1
        else Starlette(routes=[Route("/v1/messages", _model, methods=["POST"])])
    )
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
