"""The network that `ramet mcp` gives to its sandboxes: to all of them, and in words to the model."""

from __future__ import annotations

import subprocess
import sys

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from ramet import AsyncSandbox, Network, Secret
from ramet.doors.mcp.sessions import McpSession, SandboxSettings
from tests.cli.commands import COMMAND, environment
from tests.network.routes import http_serving

VALUE = "s3cr3t-of-the-weather"
SEND = """
import os, urllib.request
asked = urllib.request.Request("URL", headers={"X-Key": os.environ["KEY"]})
print(urllib.request.urlopen(asked, timeout=30).read().decode())
"""


async def test_forks_and_sandboxes_of_snapshots_have_network_and_secrets_too() -> None:
    with http_serving() as server:
        rule = server.rule("api.example")
        network = Network([rule], addresses={"api.example": "127.0.0.1"})
        session = McpSession(
            SandboxSettings(network=network, secrets={"KEY": Secret(VALUE, hosts=[rule], headers=["X-Key"])})
        )

        async def sends(sandbox: AsyncSandbox) -> str | None:
            result = await sandbox.run_code(SEND.replace("URL", server.url("/echo", "api.example")), timeout=60)
            assert result.ok, result.stderr
            assert VALUE not in result.stdout
            return server.requests[-1].header("X-Key")

        try:
            first = await session.sandbox(None)
            (child,) = await session.fork(first, 1, reseed=False)
            snapshot = await session.snapshot(first)
            thawed = await session.create(snapshot.id)
            assert [await sends(one) for one in (first, child, thawed)] == [VALUE] * 3
        finally:
            await session.close()


@pytest.mark.deep("restarts")
async def test_a_model_is_told_what_can_be_reached() -> None:
    arguments = [*COMMAND[1:], "mcp", "--network", "api.example", "--secret", "KEY@api.example"]
    started = StdioServerParameters(command=sys.executable, args=arguments, env=environment(KEY=VALUE))
    async with Client(stdio_client(started)) as client:
        told = client.instructions
    assert told is not None
    assert "Only these hosts can be reached over the network: api.example." in told
    assert "placeholders: KEY." in told
    assert VALUE not in told


@pytest.mark.deep("restarts")
def test_a_secret_without_its_variable_ends_the_command() -> None:
    ended = subprocess.run(
        [*COMMAND, "mcp", "--network", "api.example", "--secret", "KEY_THAT_IS_NOT_SET@api.example"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert ended.returncode == 1
    assert "export KEY_THAT_IS_NOT_SET=VALUE" in ended.stderr
