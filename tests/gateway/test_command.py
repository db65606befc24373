"""The command `ramet gateway`, started and stopped as a person does."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import anthropic
import httpx
import pytest

from ramet.doors.gateway.serving import _Passing
from tests.gateway.clients import CODE_TOOL, KEY, Asking, results, said, texts, user, weather_tool
from tests.gateway.commands import COMMAND, WAIT_SECONDS, started
from tests.gateway.upstreams import ScriptedUpstream, python, says


def refused(*options: str, **variables: str) -> str:
    done = subprocess.run(
        [*COMMAND, *options],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_it_says_how_to_connect_serves_and_ends_in_order(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with started(tmp_path, upstream.url, "--log-format", "json") as gateway:
        assert gateway.said.splitlines()[0] == f"Ramet's gateway serves {gateway.url}"
        assert f'client = anthropic.Anthropic(base_url="{gateway.url}", api_key="your key")' in gateway.said
        upstream.will(says(python("print(await get_weather(location='A'))")), says("It rains."))
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            ask, question, tools = Asking(client, stream=True), user("secret-question"), [CODE_TOOL, weather_tool()]
            first = ask([question], tools)
            history = [question, said(first), results(first, "secret-result")]
            assert texts(ask(history, tools, container=first.container.id)) == "It rains."
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(WAIT_SECONDS) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["request", "request", "stopping", "stopped"]
    assert (lines[0]["route"], lines[0]["status"]) == ("/v1/messages", 200)
    for secret in (KEY, "secret-question", "secret-result", "get_weather"):
        assert secret not in (tmp_path / "log").read_text()


@pytest.mark.deep("restarts")
def test_a_second_signal_hurries_it_and_clients_are_told(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with started(tmp_path, upstream.url) as gateway:
        upstream.will(says(python("while True: pass")))
        body = {"model": "m", "messages": [user("x")], "tools": [CODE_TOOL], "stream": True}
        with httpx.stream("POST", f"{gateway.url}/v1/messages", json=body, timeout=WAIT_SECONDS) as answer:
            lines = answer.iter_lines()
            assert any("content_block_stop" in line for line in lines)  # up to there
            gateway.process.send_signal(signal.SIGTERM)
            until = time.monotonic() + WAIT_SECONDS
            while "stopping" not in (tmp_path / "log").read_text():
                assert time.monotonic() < until
            gateway.process.send_signal(signal.SIGTERM)
            assert any("the gateway is stopping" in line for line in lines)
        assert gateway.process.wait(WAIT_SECONDS) == 0


@pytest.mark.deep("restarts")
def test_keys_come_from_variables(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    options = ("--api-key-env", "OURS", "--upstream-key-env", "THEIRS", "--host", "0.0.0.0")
    with started(tmp_path, upstream.url, *options, OURS="one, two", THEIRS="sk-ant-api-three") as gateway:
        assert "any key" not in gateway.said
        upstream.will(says("hello"))
        with anthropic.Anthropic(base_url=gateway.url, api_key="two", max_retries=0) as client:
            Asking(client, stream=False)("hi")
        with anthropic.Anthropic(base_url=gateway.url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError):
                Asking(client, stream=False)("hi")
    assert upstream.samples[0].headers["x-api-key"] == "sk-ant-api-three"
    log = (tmp_path / "log").read_text()
    assert not re.search(r"\bone\b|\btwo\b|three|wrong", log)


def test_without_keys_it_listens_on_this_machine_only() -> None:
    error = refused("--upstream", "http://127.0.0.1:9", "--host", "0.0.0.0", "--port", "0")
    assert "without keys anybody there could run code" in error
    assert "hint: " in error
    assert "--api-key-env" in error


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--upstream", "nonsense"), "upstream must be the URL of a server, got 'nonsense'"),
        (("--upstream", "http://x", "--api-key-env", "NOT_THERE"), "the environment variable NOT_THERE of --"),
        (("--upstream", "http://x", "--upstream-key-env", "NOT_THERE"), "the environment variable NOT_THERE of --"),
        (("--upstream", "http://x", "--port", "0", "--template", "no such template"), "template"),
    ],
)
def test_what_is_wrong_with_its_options_is_said(options: tuple[str, ...], what: str, tmp_path: Path) -> None:
    assert what in refused(*options, "--files", str(tmp_path))


def test_without_its_packages_it_says_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'httpx' else found(name, *more)\n"
        "sys.modules['httpx'] = None\n"
    )
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    error = refused("--upstream", "http://127.0.0.1:9", PYTHONPATH=path)
    assert "needs httpx, which is not installed" in error
    assert "pip install '.[gateway]'" in error


def test_what_asyncio_logs_of_an_exception_is_not_repeated() -> None:
    """It describes the task that failed on further lines, with whatever was in the exception."""
    lines: list[dict[str, object]] = []

    class Lines:
        def event(self, event: str, /, level: str = "info", **values: object) -> None:
            lines.append({"event": event, **values})

    text = "Task exception was never retrieved\nfuture: <Task finished exception=ValueError('secret')>"
    _Passing(Lines()).emit(logging.LogRecord("asyncio", logging.ERROR, "", 0, text, (), None))
    assert lines == [{"event": "trouble", "message": "Task exception was never retrieved", "error": None}]
