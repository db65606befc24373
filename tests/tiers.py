"""Two tiers of tests: what every change waits for (`--tier=fast`, `make test`) and everything (`make test-all`).

The fast tier leaves out tests marked `deep`, each of which names its kind, and runs a test that has several faces on
the first of them only, unless it is marked `every_face`. `--tier=deep` runs what the fast tier leaves out. Without
`--tier` nothing is left out. The summary of the fast tier says what was left out.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

# Why a test may be left out of the fast tier.
KINDS = {
    "attacks": "more spellings of attacks, of which the fast tier has one for each wall",
    "fuzz": "random input, and sequences of random operations",
    "libraries": "libraries and clients of others, installed by `make test-all` only",
    "restarts": "more servers, engines and programs that are started, ended or killed; the fast tier has one of each",
    "load": "many of something, something large, or waits that cannot be made short",
}
# Fixtures that give a test one face after another, of the SDK, of MCP or of `ramet run`, and that of the fast tier.
_FACES = {"make_any_sandbox": "sync", "make_local_sandbox": "sync", "connect": "http", "ramet_run": "server"}
_OTHER_FACES = "faces: other faces of tests that have no code of their own on each"
# Longer than this, and the summary of the fast tier names the test: a candidate for work, not a failure.
_LONG_SECONDS = 4.0


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("fast", "deep", "all"),
        default="all",
        help="fast: leave out tests marked deep, and all faces but one where a test is not marked every_face; "
        "deep: those alone",
    )


class Tiers:
    """Leaves tests out, and says in the summary which. With workers, each of them leaves out the same ones."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tier = config.getoption("--tier")
        self._fast = self._tier == "fast"
        self._left_out: Counter[str] = Counter()
        self._on_every_face = 0
        self._long: list[tuple[float, str]] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept, left_out = [], []
        for item in items:
            reason = _reason_to_leave_out(item)
            if self._tier == "fast" and reason is not None:
                self._left_out[reason] += 1
                left_out.append(item)
            elif self._tier == "deep" and reason is None:
                left_out.append(item)
            else:
                kept.append(item)
        on_every_face = [item for item in kept if item.get_closest_marker("every_face") is not None]
        self._on_every_face = len({item.nodeid.partition("[")[0] for item in on_every_face})
        if left_out:
            self._config.hook.pytest_deselected(items=left_out)
            items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._fast and report.when == "call" and report.duration > _LONG_SECONDS:
            self._long.append((report.duration, report.nodeid))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:  # this is a worker: only the controller prints
            output["left_out"] = dict(self._left_out)
            output["on_every_face"] = self._on_every_face

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """In the controller, when a worker of pytest-xdist has ended; one that crashed has no output."""
        output = getattr(node, "workeroutput", {})
        if "left_out" in output:
            self._left_out = Counter(output["left_out"])
            self._on_every_face = output["on_every_face"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._fast:
            return
        write = terminalreporter.write_line
        terminalreporter.section("fast tier")
        write(f"left out: {sum(self._left_out.values())} runs; make test-all runs them")
        for reason, count in sorted(self._left_out.items()):
            write(f"  {count:5} {reason}")
        write(f"on every face: {self._on_every_face} tests")
        for seconds, name in sorted(self._long, reverse=True)[:10]:
            write(f"  {seconds:5.1f} s {name}")


def _reason_to_leave_out(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("deep")
    if marker is not None:
        if len(marker.args) != 1 or marker.args[0] not in KINDS:
            raise pytest.UsageError(f"{item.nodeid}: deep must name one of {', '.join(KINDS)}, got {marker.args}")
        return f"{marker.args[0]}: {KINDS[marker.args[0]]}"
    parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    other_face = any(parameters[fixture] != face for fixture, face in _FACES.items() if fixture in parameters)
    if other_face and item.get_closest_marker("every_face") is None:
        return _OTHER_FACES
    return None
