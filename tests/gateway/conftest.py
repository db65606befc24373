"""One scripted upstream and one gateway for all tests of a module that need no others; both run in threads."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import pytest

from tests.gateway.clients import KEY, Asking
from tests.gateway.gateways import Gateway, running_gateway
from tests.gateway.upstreams import ScriptedUpstream, running_upstream


@pytest.fixture(scope="module")
def _one_upstream() -> Iterator[ScriptedUpstream]:
    with running_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(_one_upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), _one_upstream.url, stall_seconds=5) as gateway:
        yield gateway


@pytest.fixture
def upstream(_one_upstream: ScriptedUpstream) -> Iterator[ScriptedUpstream]:
    """Fresh; a test must use up what it wrote down."""
    _one_upstream.reset()
    yield _one_upstream
    _one_upstream.released.set()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(params=["plain", "streamed"])
def ask(request: pytest.FixtureRequest, client: anthropic.Anthropic) -> Asking:
    """Each exchange, in one piece and as a stream: the same answer."""
    return Asking(client, stream=request.param == "streamed")
