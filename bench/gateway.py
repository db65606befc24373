"""A gateway of our own for the bench, in front of a model that answers at once."""

import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.measure import Sample
from bench.process import announcing_program
from bench.upstream import CODE, PRINTED
from ramet import Sandbox

_TOOL = {"type": "code_execution_20260120", "name": "code_execution"}


@dataclass(frozen=True)
class Places:
    """Where the gateway and the plain proxy listen: both are in front of the same model."""

    gateway: str
    proxy: str


@contextmanager
def running() -> Iterator[Places]:
    with ExitStack() as stack:
        model = stack.enter_context(announcing_program("bench.upstream"))
        proxy = stack.enter_context(announcing_program("bench.upstream", model))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ramet-bench-"))
        options = ["--upstream", model, "--port", "0", "--files", folder]
        gateway = stack.enter_context(announcing_program("ramet.cli.main", "gateway", *options))
        yield Places(gateway, proxy)


class _Client:
    """Asks over one connection that is kept."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)

    def ask(self, **request: object) -> dict[str, object]:
        body = json.dumps({"model": "bench", "max_tokens": 1000, **request})
        headers = {"content-type": "application/json", "x-api-key": "bench", "anthropic-version": "2023-06-01"}
        self._connection.request("POST", "/v1/messages", body, headers)
        response = self._connection.getresponse()
        data = response.read()
        assert response.status == 200, data
        answer: dict[str, object] = json.loads(data)
        return answer

    def close(self) -> None:
        self._connection.close()


def _user(text: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": text}]


@contextmanager
def turn(url: str) -> Iterator[Sample]:
    """One request to the gateway: the model calls the tool, the cell runs, the model ends."""
    client = _Client(url)
    container = client.ask(messages=_user("go"), tools=[_TOOL])["container"]["id"]  # type: ignore[index]

    def sample() -> float:
        started = time.perf_counter()
        answer = client.ask(messages=_user("go"), tools=[_TOOL], container=container)
        taken = time.perf_counter() - started
        assert PRINTED in json.loads(json.dumps(answer["content"]))[1]["content"]["stdout"], answer
        return taken

    yield sample
    client.close()


@contextmanager
def by_hand(url: str) -> Iterator[Sample]:
    """What a program does without the gateway: ask through the proxy, run the cell embedded, ask again."""
    client = _Client(url)
    with Sandbox() as sandbox:

        def sample() -> float:
            started = time.perf_counter()
            asked = client.ask(messages=_user("go"), tools=[{"name": "code_execution", "input_schema": {}}])
            result = sandbox.run_code(CODE)
            told = [{"type": "tool_result", "tool_use_id": "toolu_bench", "content": result.stdout}]
            history = [*_user("go"), {"role": "assistant", "content": asked["content"]}]
            answer = client.ask(messages=[*history, {"role": "user", "content": told}])
            taken = time.perf_counter() - started
            assert result.stdout == PRINTED
            assert answer["stop_reason"] == "end_turn"
            return taken

        yield sample
    client.close()


@dataclass(frozen=True)
class Conversations:
    errors: list[str]
    turn_seconds: list[float]

    def percentile(self, percent: int) -> float:
        return statistics.quantiles(self.turn_seconds, n=100)[percent - 1]


def conversations(url: str, count: int, turns: int) -> Conversations:
    """So many at once, each in a container of its own."""
    seconds: list[float] = []
    errors: list[str] = []
    together = threading.Barrier(count)

    def one(number: int) -> None:
        client = _Client(url)
        together.wait()
        try:
            container: dict[str, object] = {}
            for _ in range(turns):
                started = time.perf_counter()
                answer = client.ask(messages=_user("go"), tools=[_TOOL], **container)
                seconds.append(time.perf_counter() - started)
                container = {"container": answer["container"]["id"]}  # type: ignore[index]
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}".splitlines()[0][:200])
        finally:
            client.close()

    with ThreadPoolExecutor(count) as threads:
        work: list[Callable[[], object]] = [threads.submit(one, number).result for number in range(count)]
        for wait in work:
            wait()
    return Conversations(errors, seconds)
