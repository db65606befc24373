"""Every route, fuzzed from the server's own description: no failure of ours, no hang, no answer it does not name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from ramet.doors.http.access.admission import ALLOWED
from ramet.doors.http.documentation import openapi
from ramet.protocol import calls
from ramet.protocol.frames import encode
from tests.server.asking import Caller
from tests.server.running import Server, running_server

EXAMPLES = 12
# A server that does not answer within this hangs. Routes that wait are asked to wait shortly, see `_shortened`.
ANSWER_SECONDS = 30

SCHEMA = schemathesis.openapi.from_dict(openapi.document())
CALL = ("POST", "/v1/call")  # takes frames, which have a test of their own
OPERATIONS = sorted(openapi.described_routes() - {CALL}, key=lambda route: route[::-1])


BOUNDED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Target:
    """A server with a caller who may have little, and living things for the ids that routes want."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self.key = server.create_key("fuzz", "--sandboxes", "6")
        self.caller = Caller(server.url, self.key)
        self._sandbox = ""

    def sandbox(self) -> str:
        """One that is there, and empty rooms beside it."""
        for row in self.caller.ask("GET", "/v1/sandboxes").json["sandboxes"]:
            if row["id"] != self._sandbox:
                self.caller.ask("DELETE", f"/v1/sandboxes/{row['id']}")
        if self.caller.ask("GET", f"/v1/sandboxes/{self._sandbox or '-'}").status != 200:
            self._sandbox = self.caller.sandbox()
        return self._sandbox

    def terminal(self) -> str:
        """One whose program has ended."""
        base = f"/v1/sandboxes/{self._sandbox}/pty"
        rows = self.caller.ask("GET", base).json
        if not rows:
            self.caller.ask("POST", base, {"argv": ["true"]})
            rows = self.caller.ask("GET", base).json
        return str(rows[0]["pty_id"])

    def snapshot(self) -> str:
        rows = self.caller.ask("GET", "/v1/snapshots").json["snapshots"]
        for row in rows[1:]:
            self.caller.ask("DELETE", f"/v1/snapshots/{row['id']}")
        if rows:
            return str(rows[0]["id"])
        return str(self.caller.ask("POST", f"/v1/sandboxes/{self._sandbox}/snapshots").json["id"])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_server(tmp_path_factory.mktemp("fuzzed")) as server:
        yield Target(server)
        assert server.running
        assert "Traceback" not in server.log.read_text()


def _named(case: Case[Any], target: Target, living: bool) -> None:
    """Real ids in the place of made up ones, for half of the requests."""
    if not living:
        return
    real = {"sandbox_id": target.sandbox, "terminal_id": target.terminal, "snapshot_id": target.snapshot}
    for name in real.keys() & case.path_parameters.keys():
        case.path_parameters[name] = real[name]()


def _shortened(case: Case[Any]) -> None:
    """What a request may rightly take long for is made short: time limits, what is preloaded, programs that wait."""
    body: Any = case.body
    if not isinstance(body, dict):
        return
    if "code" in body:
        body["timeout"] = 1
    if "timeout_ms" in body and isinstance(body["timeout_ms"], int):
        body["timeout_ms"] = min(body["timeout_ms"], 100)
    if body.get("preload"):
        del body["preload"]  # each name would boot an interpreter
    if "shellCmd" in body and isinstance(body["shellCmd"], str):
        body["shellCmd"] = "exit; " + body["shellCmd"]
    if isinstance(body.get("argv"), list):
        body["argv"][:1] = ["true"]


def requests_there_are() -> Iterator[Any]:
    """Each operation with requests that its description allows, and, where there is something to get wrong, others."""
    for method, path in OPERATIONS:
        described = openapi.document()["paths"][path][method.lower()]
        yield pytest.param(method, path, GenerationMode.POSITIVE, id=f"{method} {path} allowed")
        if "parameters" in described or "requestBody" in described:
            yield pytest.param(method, path, GenerationMode.NEGATIVE, id=f"{method} {path} refused")


@pytest.mark.deep("fuzz")
@pytest.mark.parametrize(("method", "path", "mode"), list(requests_there_are()))
def test_a_route_answers_whatever_is_asked(method: str, path: str, mode: GenerationMode, target: Target) -> None:
    cases = SCHEMA[path][method].as_strategy(generation_mode=mode)

    @BOUNDED
    @given(case=cases, living=st.booleans())
    def fuzz(case: Case[Any], living: bool) -> None:
        _named(case, target, living)
        _shortened(case)
        try:
            response = case.call(
                base_url=target.url, headers={"Authorization": f"Bearer {target.key}"}, timeout=ANSWER_SECONDS
            )
        except requests.exceptions.InvalidHeader:
            return  # nothing was sent
        assert response.status_code < 500 or response.status_code == 503, (case.as_curl_command()[:1000], response.text)
        if response.status_code in (404, 405, 431):
            return  # a path that was made up leads elsewhere or nowhere; a head may be too long for any route
        checks = [status_code_conformance, content_type_conformance]
        if "ndjson" not in response.headers.get("content-type", [""])[0]:
            checks.append(response_schema_conformance)
        case.validate_response(response, checks=checks)

    fuzz()


_NAMES = (
    "sandbox", "execution", "owner", "path", "new_path", "more", "parents", "recursive", "offset", "length", "language",
    "timeout", "stream", "on_disconnect", "count", "reseed", "snapshot", "name", "winner", "other", "paths", "space",
    "lifetime", "persistent", "terminal", "argv", "env", "cwd", "cols", "rows", "since", "max_bytes", "timeout_ms",
    "template", "preload", "wait", "timeout_seconds", "idle_timeout_seconds",
)  # fmt: skip
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.deep("fuzz")
@pytest.mark.parametrize("kind", [*sorted(ALLOWED), calls.WATCH, calls.STATS, calls.ANSWER, 0, 255])
def test_a_call_of_the_engine_answers_whatever_is_asked(kind: int, target: Target) -> None:
    @BOUNDED
    @given(header=st.dictionaries(st.sampled_from(_NAMES), _VALUES), blob=st.binary(max_size=20), living=st.booleans())
    def fuzz(header: dict[str, object], blob: bytes, living: bool) -> None:
        if living:
            header["sandbox"] = target.sandbox()
        if kind == calls.RUN:
            header["timeout"] = 1
        header.pop("preload", None)  # each would boot an interpreter
        answer = target.caller.ask("POST", "/v1/call", encode(kind, header, blob))
        assert answer.status < 500 or answer.status == 503, (kind, header, blob, answer)

    fuzz()


@pytest.mark.deep("fuzz")
def test_bytes_that_are_no_frames_are_refused(target: Target) -> None:
    whole = encode(calls.INFO, {"sandbox": "a"})
    cut = [whole[:length] for length in range(len(whole))]
    changed = [whole[:at] + b"\xff" + whole[at + 1 :] for at in range(len(whole))]
    for data in (*cut, *changed, whole + b"x", whole + whole, bytes(1000), b"\xff" * 1000):
        answer = target.caller.ask("POST", "/v1/call", data)
        assert 400 <= answer.status < 500, (data, answer)


@pytest.mark.deep("restarts")
def test_a_call_that_is_malformed_disturbs_nobody_else(target: Target) -> None:
    """The engine hangs up on who breaks the protocol; that connection must not be another's next."""
    for _ in range(100):
        answer = target.caller.ask("POST", "/v1/call", encode(calls.INFO, {"sandbox": 7}))
        assert answer.status == 400
        assert target.caller.ask("GET", "/v1/sandboxes").status == 200
