"""The client of web_client.py inside a sandbox with a rule for one host, and the same one outside."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench import web_client
from bench.measure import Sample
from bench.process import sampling_process
from ramet import Network, Sandbox

_HOST = "data.example"
_SAMPLE_SECONDS = 120


@contextmanager
def inside(kind: str, url: str) -> Iterator[Sample]:
    """Samples of the client in a sandbox, which asks for the server by a name that a rule lists."""
    address = urlsplit(url)
    network = Network([f"{_HOST}:{address.port}"], addresses={_HOST: str(address.hostname)})
    with Sandbox(network=network) as sandbox:
        sandbox.files.write("/root/web_client.py", Path(web_client.__file__).read_bytes())
        named = f"http://{_HOST}:{address.port}{address.path}"
        prepared = sandbox.run_code(f"import web_client; sample = web_client.sampler({kind!r}, {named!r})")
        assert prepared.ok, prepared

        def sample() -> float:
            result = sandbox.run_code("print(sample())", timeout=_SAMPLE_SECONDS)
            assert result.ok, result
            return float(result.stdout)

        yield sample


def outside(kind: str, url: str) -> AbstractContextManager[Sample]:
    return sampling_process("bench.web_client", kind, url)


def with_rules() -> Sandbox:
    return Sandbox(network=["data.example", "*.files.example:443"])
