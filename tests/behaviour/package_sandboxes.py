"""An index of small packages on this machine, and sandboxes whose owner chose it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ramet import Network, Sandbox
from tests.network.package_index import package_index, wheel
from tests.network.routes import http_serving
from tests.network.servers import Server

HOST = "index.example"


@dataclass(frozen=True)
class Index:
    """A server of wheels, under a name that only these sandboxes know."""

    server: Server

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server.port}/simple"

    @property
    def options(self) -> dict[str, Any]:
        """For a sandbox that may reach the index and nothing else."""
        return {
            "network": Network([self.server.rule(HOST)], addresses={HOST: "127.0.0.1"}),
            "env": {"PIP_INDEX_URL": self.url, "PIP_TRUSTED_HOST": HOST, "UV_DEFAULT_INDEX": self.url},
        }

    def sandbox(self) -> Sandbox:
        return Sandbox(**self.options)

    def downloads(self, name: str) -> int:
        """How often a wheel of that name was fetched."""
        return sum(f"/packages/{name}-" in request.target for request in self.server.requests)


@contextmanager
def serving_index() -> Iterator[Index]:
    wheels = [
        wheel("tiny_thing", "1.0"),
        wheel("tiny_thing", "1.2"),
        wheel("larger_thing", "2.0", ("tiny_thing>=1.1",), padding_bytes=300_000),
    ]
    with http_serving(more=package_index(*wheels)) as server:
        yield Index(server)
