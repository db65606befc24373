"""What tests of several folders need: one engine per session, fresh sandboxes, a neighbour that must notice nothing."""

from __future__ import annotations

import gc
import os
import resource
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import pytest

from ramet import Sandbox
from ramet.transport import embedded
from tests import tiers

# SIGINT again, hard interrupt, kill: the ladder that users have, climbed faster.
_SHORT_WAITS = ["--interrupt-seconds", "0.3,0.3,0.6"]
_ANSWER_SECONDS = 10

# A run in the background (nohup, `&` in a script) ignores these two, and so would every program that a test starts.
for _number, _usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# Of a machine that others use too, the time that an example takes says nothing.
_UNHURRIED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("random", _UNHURRIED)
# What every change waits for passes or fails by the change, not by chance: the same examples each time.
hypothesis.settings.register_profile("repeatable", _UNHURRIED, derandomize=True, database=None)

# Tests are of the engine here, whatever server the person who runs them works with.
for _name in ("RAMET_URL", "RAMET_API_KEY"):
    os.environ.pop(_name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(tiers.Tiers(config), "tiers")
    hypothesis.settings.load_profile("repeatable" if config.getoption("--tier") == "fast" else "random")


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: without this, each collection of garbage looks at all of them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def packages_are_kept_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines of these tests keep what sandboxes install in a folder of the tests, not in that of who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def short_waits_of_the_engine() -> Iterator[None]:
    if not embedded.engine_options:
        embedded.engine_options[:] = _SHORT_WAITS
    yield
    embedded.close_engine()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """For a test that holds more ends of connections itself than most users' programs may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A fresh sandbox."""
    with Sandbox() as fresh:
        yield fresh


class Neighbour:
    """Another sandbox of the same engine, with something in its memory that only it can answer for."""

    def __init__(self) -> None:
        self.sandbox = Sandbox(history=False)  # the processes of its points would count as left behind
        self.sandbox.run_code("witness = 41")
        self._engine = embedded.default_engine()
        self._thread = ThreadPoolExecutor(1)

    def assert_unharmed(self) -> None:
        """It answers within a bounded time, remembers, and the engine is the one it was."""
        answer = self._thread.submit(self.sandbox.run_code, "witness + 1", timeout=_ANSWER_SECONDS)
        result = answer.result(_ANSWER_SECONDS + 5)
        assert (result.value, result.state, result.restarted) == ("42", "kept", False)
        assert embedded.default_engine() is self._engine

    def close(self) -> None:
        self.sandbox.close()
        self._thread.shutdown()


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    other = Neighbour()
    yield other
    other.close()


@pytest.fixture
def neighbour_still_answers(neighbour: Neighbour) -> Callable[[], None]:
    """Fails unless the neighbour answers within a bounded time, with its memory intact, from the same engine."""
    return neighbour.assert_unharmed
