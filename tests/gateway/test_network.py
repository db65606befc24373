"""The network that a gateway gives to its containers: also after they were frozen, and to their copies."""

from __future__ import annotations

import pytest

from ramet import AsyncSandbox, Network, Secret
from ramet.doors.gateway.containers.kept_sandbox import KeptSandbox
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.requests.tool_texts import ContainerFacts, tools_for_upstream
from ramet.integrations.reach import reach
from tests.network.routes import http_serving

VALUE = "s3cr3t-of-the-weather"
SEND = """
import os, urllib.request
asked = urllib.request.Request("URL", headers={"X-Key": os.environ["KEY"]})
print(urllib.request.urlopen(asked, timeout=30).read().decode())
"""


@pytest.mark.deep("restarts")
async def test_a_container_has_its_network_and_secrets_also_after_it_was_frozen() -> None:
    with http_serving() as server:
        rule = server.rule("api.example")
        settings = ContainerSettings(
            network=Network([rule], addresses={"api.example": "127.0.0.1"}),
            secrets={"KEY": Secret(VALUE, hosts=[rule], headers=["X-Key"])},
        )
        assert VALUE not in repr(settings)
        kept = KeptSandbox(settings, "/tmp/outputs")

        async def sends(sandbox: AsyncSandbox) -> str | None:
            result = await sandbox.run_code(SEND.replace("URL", server.url("/echo", "api.example")), timeout=60)
            assert result.ok, result.stderr
            return server.requests[-1].header("X-Key")

        try:
            assert await sends(await kept.awake()) == VALUE
            assert await kept.rest()
            assert await sends(await kept.awake()) == VALUE
        finally:
            await kept.close()


def test_a_model_is_told_what_can_be_reached() -> None:
    def told(network: Network | None) -> list[str]:
        surroundings = ContainerFacts(
            90, reach(network, {"KEY": Secret(VALUE, hosts=["api.example"])} if network else {})
        )
        tools = tools_for_upstream("20260120", [], surroundings)
        return [str(tool["description"]) for tool in tools[:2]]

    assert all("There is no internet access." in text for text in told(None))
    assert all("There is internet access;" in text for text in told(Network("open")))
    for text in told(Network(["api.example"])):
        assert "Only these hosts can be reached over the network: api.example." in text
        assert "placeholders: KEY." in text
