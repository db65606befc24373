"""How long a package takes to install: the first time in this engine, again in another sandbox, and by pip itself."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

from bench.measure import Contestant, Sample, measure
from bench.process import announcing_program
from bench.settings import AGAIN, Settings, row
from bench.table import Row
from ramet import Network, Sandbox

_HOST = "index.example"
_SECONDS = 300


def install_again(settings: Settings) -> list[Row]:
    rows: list[Row] = []
    with announcing_program("bench.package_index") as url:
        for size, described in (("small", "a package of one module"), ("large", "a package of a thousand modules")):
            samples = measure(
                [
                    Contestant("ours", partial(installing, url, "pip", f"{size}-known")),
                    Contestant("again", partial(installing, url, "pip", f"{size}-known")),
                    Contestant("first", partial(installing, url, "pip", size, new=True)),
                    Contestant("pip", partial(installing, url, "python -m pip", f"{size}-known")),
                ],
                settings.rounds(16),
                settings.shuffle,
            )
            scenario = f"install {described} again, in another sandbox"
            rows += [
                row(scenario, samples, "again", AGAIN),
                row(scenario, samples, "first", "the first install", 0.2),
                row(scenario, samples, "pip", "pip itself in a sandbox"),
            ]
    return rows


@contextmanager
def installing(url: str, program: str, package: str, new: bool = False) -> Iterator[Sample]:
    """Samples of an installation in a fresh sandbox; of a package that nobody has had before, if it is to be new."""
    port = urlsplit(url).port
    network = Network([f"{_HOST}:{port}"], addresses={_HOST: "127.0.0.1"})
    environment = {"PIP_INDEX_URL": f"http://{_HOST}:{port}/simple", "PIP_TRUSTED_HOST": _HOST}

    def sample() -> float:
        name = f"{package}-{secrets.token_hex(8)}" if new else package
        with Sandbox(network=network, env=environment) as sandbox:
            assert sandbox.run_code("1").ok
            started = time.perf_counter()
            result = sandbox.run_code(f"{program} install -q {name}", language="bash", timeout=_SECONDS)
            taken = time.perf_counter() - started
            assert result.ok, result
            return taken

    yield sample
