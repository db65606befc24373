"""Installing packages in a sandbox with a network: into its own files, and the second time from the engine's store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import trustme

from ramet import Language, Network, Sandbox
from tests.behaviour.package_sandboxes import HOST, Index, serving_index
from tests.network.package_index import package_index, wheel
from tests.network.routes import http_serving

pytest.importorskip("pip")

SECONDS = 80
VERSION = "import larger_thing, tiny_thing; larger_thing.version, tiny_thing.version"
VERSIONS = "('2.0', '1.2')"
INSTALLED = "Successfully installed larger-thing-2.0 tiny-thing-1.2"


@pytest.fixture
def index() -> Iterator[Index]:
    with serving_index() as found:
        yield found


def run(sandbox: Sandbox, code: str, language: Language = "python") -> str:
    result = sandbox.run_code(code, language=language, timeout=SECONDS)
    assert result.exit_code == 0, result.stdout + result.stderr
    return result.stdout


def test_the_second_sandbox_gets_the_same_packages_without_asking_the_index(index: Index) -> None:
    with index.sandbox() as first, index.sandbox() as second, index.sandbox() as other:
        assert INSTALLED in run(first, "%pip install larger_thing")
        asked = len(index.server.requests)
        assert INSTALLED in run(second, "%pip install larger_thing")
        assert len(index.server.requests) == asked
        for sandbox in (first, second):
            assert sandbox.run_code(VERSION).value == VERSIONS
            assert run(sandbox, "python -c 'import larger_thing'", "bash") == ""
        # What was installed is nobody else's.
        assert other.run_code("import larger_thing").exit_code == 1
    assert not list(Path(sys.prefix).glob("lib/python3*/site-packages/larger_thing*"))


@pytest.mark.deep("load")
def test_every_way_to_say_pip_installs_into_the_private_layer(index: Index) -> None:
    installs: tuple[tuple[str, Language], ...] = (
        ("%pip install larger_thing", "python"),
        ("!pip install larger_thing", "python"),
        ("pip install larger_thing", "bash"),
        ("pip3 install -q larger-thing", "bash"),
        ("python -m pip install larger_thing", "bash"),
        ("echo 'larger_thing >= 1.0  # why' > r.txt; pip install -r r.txt", "bash"),
    )
    for code, language in installs:
        with index.sandbox() as sandbox:
            run(sandbox, code, language)
            assert sandbox.run_code(VERSION).value == VERSIONS, code
            listed = run(sandbox, "python -m pip list", "bash")
            assert "larger_thing" in listed
            run(sandbox, "python -m pip check", "bash")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make an environment of somebody else")
@pytest.mark.deep("load")
def test_an_environment_of_somebody_else_is_installed_into_all_the_same(index: Index, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run(["chown", "-R", "4321:4321", environment], check=True)
    python = str(environment / "bin/python")
    installs: tuple[tuple[str, Language], ...] = (
        ("%pip install larger_thing", "python"),
        ("python -m pip install larger_thing", "bash"),
    )
    for code, language in installs:
        with Sandbox(**index.options, python=python) as sandbox:
            run(sandbox, code, language)
            assert sandbox.run_code(VERSION).value == VERSIONS
            (child,) = sandbox.fork(1)
            with child:
                run(child, "pip uninstall -y larger_thing", "bash")
                assert run(child, "python -m pip list", "bash").count("larger_thing") == 0
            assert "larger_thing" in run(sandbox, "python -m pip list", "bash")


def test_uv_installs_into_the_private_layer(index: Index) -> None:
    pytest.importorskip("uv")
    with index.sandbox() as sandbox:
        run(sandbox, "uv pip install larger_thing", "bash")
        assert sandbox.run_code(VERSION).value == VERSIONS
        (child,) = sandbox.fork(1)
        with child:
            assert child.run_code(VERSION).value == VERSIONS


@pytest.mark.deep("load")
def test_what_was_installed_stays_for_later_cells_and_forks(index: Index) -> None:
    with index.sandbox() as sandbox:
        run(sandbox, "%pip install tiny_thing==1.0")
        (child,) = sandbox.fork(1)
        with child:
            assert child.run_code("import tiny_thing; tiny_thing.version").value == "'1.0'"
            # A copy asks over a socket of its own. Where other versions are in the way, pip itself clears up.
            run(child, "%pip install larger_thing")
            assert run(child, f"python -c '{VERSION}; print(tiny_thing.version)'", "bash") == "1.2\n"
        assert sandbox.run_code("import tiny_thing; tiny_thing.version").value == "'1.0'"
        assert sandbox.run_code("import larger_thing").exit_code == 1


@pytest.mark.deep("load")
def test_what_is_there_already_is_said_and_not_fetched(index: Index) -> None:
    with index.sandbox() as sandbox:
        run(sandbox, "%pip install larger_thing")
        asked = len(index.server.requests)
        assert "Requirement already satisfied: larger_thing in " in run(sandbox, "%pip install larger_thing")
        assert "Requirement already satisfied: Tiny.Thing==1.2 in " in run(sandbox, "%pip install Tiny.Thing==1.2")
        assert run(sandbox, "%pip install -q tiny_thing") == ""
        assert len(index.server.requests) == asked


@pytest.mark.deep("load")
def test_another_version_takes_the_place_of_the_first(index: Index) -> None:
    with index.sandbox() as sandbox:
        run(sandbox, "%pip install tiny_thing==1.0")
        run(sandbox, "%pip install tiny_thing==1.2")
        assert run(sandbox, "python -c 'import tiny_thing; print(tiny_thing.version)'", "bash") == "1.2\n"
        run(sandbox, "%pip uninstall -y tiny_thing")
        assert sandbox.run_code("import importlib; importlib.invalidate_caches(); import tiny_thing").exit_code == 1


@pytest.mark.deep("load")
def test_what_the_index_does_not_have_is_pips_own_error(index: Index) -> None:
    with index.sandbox() as sandbox:
        for _ in range(2):
            result = sandbox.run_code("%pip install no_such_thing", timeout=SECONDS)
            assert result.exit_code == 1
            assert "No matching distribution found for no_such_thing" in result.stderr


@pytest.mark.deep("load")
def test_a_sandbox_that_may_reach_nothing_is_told_so_by_pip(index: Index) -> None:
    with index.sandbox() as allowed:
        run(allowed, "%pip install tiny_thing")
        with Sandbox(network=[], env=index.options["env"]) as sandbox:
            result = sandbox.run_code("%pip install tiny_thing", timeout=SECONDS)
            assert result.exit_code == 1
            assert sandbox.run_code("import tiny_thing").exit_code == 1


@pytest.mark.deep("load")
def test_the_log_tells_what_was_fetched_for_a_sandbox(index: Index) -> None:
    with index.sandbox() as first, index.sandbox() as second:
        run(first, "%pip install tiny_thing")
        hosts = {(entry.host, entry.port, entry.allowed) for entry in first.network.log()}
        assert (HOST, index.server.port, True) in hosts
        run(second, "%pip install tiny_thing")
        assert second.network.log() == []


@pytest.mark.deep("load")
def test_sandboxes_that_ask_at_the_same_time_share_one_installation(
    index: Index, in_background: Callable[..., Future[Any]]
) -> None:
    sandboxes = [index.sandbox() for _ in range(4)]
    try:
        running = [in_background(run, sandbox, "%pip install larger_thing") for sandbox in sandboxes]
        assert all(INSTALLED in one.result(SECONDS) for one in running)
        assert index.downloads("larger_thing") == 1
    finally:
        for sandbox in sandboxes:
            sandbox.close()


@pytest.mark.deep("restarts")
def test_an_installation_that_is_interrupted_leaves_nothing_and_can_be_made_again(index: Index) -> None:
    with index.sandbox() as sandbox:
        code = "import os, signal, threading\nthreading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        sandbox.run_code(code + "%pip install larger_thing", timeout=SECONDS)
        assert run(sandbox, "%pip install larger_thing")
        assert sandbox.run_code(VERSION).value == VERSIONS


def run_program(index: Index, cache: str, sandboxes: int) -> None:
    """In an engine of its own, each sandbox installs the same and holds on to it."""
    program = (
        "from ramet import Language, Network, Sandbox\n"
        f"network = Network([{index.server.rule(HOST)!r}], addresses={{{HOST!r}: '127.0.0.1'}})\n"
        f"for sandbox in [Sandbox(network=network, env={index.options['env']!r}) for _ in range({sandboxes})]:\n"
        f"    print(sandbox.run_code('%pip install larger_thing', timeout={SECONDS}).stdout)\n"
        f"    assert sandbox.run_code({VERSION!r}).value == {VERSIONS!r}\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(INSTALLED) == sandboxes, done.stdout + done.stderr


@pytest.mark.deep("load")
def test_a_later_engine_finds_what_an_earlier_one_kept(index: Index, tmp_path: Path) -> None:
    run_program(index, str(tmp_path), 1)
    asked = len(index.server.requests)
    run_program(index, str(tmp_path), 1)
    assert len(index.server.requests) == asked
    kept = list((tmp_path / "ramet" / "packages").iterdir())
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o700]


@pytest.mark.deep("load")
def test_an_engine_that_may_write_nowhere_keeps_packages_in_memory(index: Index) -> None:
    run_program(index, "/dev/null/nowhere", 3)
    assert index.downloads("larger_thing") == 1


def test_without_a_network_the_error_says_what_to_do(index: Index) -> None:
    with Sandbox() as sandbox:
        result = sandbox.run_code("%pip install no_such_thing", timeout=SECONDS)
        assert result.exit_code == 1
        assert "this sandbox has no network" in result.stderr
        assert "network=[" in result.stderr


@pytest.mark.deep("load")
def test_settings_of_the_code_itself_are_pips_business(index: Index) -> None:
    with index.sandbox() as sandbox:
        run(sandbox, "%pip install tiny_thing")
    with serving_index() as other:
        options = index.options
        network = Network(
            [index.server.rule(HOST), other.server.rule("other.example")],
            addresses={HOST: "127.0.0.1", "other.example": "127.0.0.1"},
        )
        with Sandbox(network=network, env=options["env"]) as sandbox:
            url = other.url.replace(HOST, "other.example")
            run(sandbox, f"PIP_TRUSTED_HOST=other.example PIP_INDEX_URL={url} pip install tiny_thing", "bash")
            assert other.downloads("tiny_thing") == 1


@pytest.mark.deep("load")
@pytest.mark.parametrize("code", ["%pip install larger_thing", "!pip install larger_thing"])
def test_an_index_that_no_rule_allows_is_named_at_once_with_what_would_allow_it(index: Index, code: str) -> None:
    options = {**index.options, "network": Network(["other.example"], addresses={HOST: "127.0.0.1"})}
    with Sandbox(**options) as sandbox:
        result = sandbox.run_code(code, timeout=SECONDS)
        where = f"{HOST}:{index.server.port}"
        assert f"{where} is in no rule of this sandbox" in result.stderr
        assert f'sandbox.network.allow("{where}")' in result.stderr
        # By pip itself, for packages that are here already; not again and again.
        assert [attempt.allowed for attempt in sandbox.network.log()] == [False]
        sandbox.network.allow(where)
        assert INSTALLED in run(sandbox, code)


@pytest.mark.deep("restarts")
def test_pip_left_to_itself_tells_what_the_proxy_said(index: Index) -> None:
    options = {**index.options, "network": Network(["other.example"], addresses={HOST: "127.0.0.1"})}
    options["env"] = {**options["env"], "PIP_INDEX_URL": f"https://{HOST}/simple"}
    with Sandbox(**options) as sandbox:
        result = sandbox.run_code("pip download larger_thing", language="bash", timeout=SECONDS)
        assert result.exit_code == 1
        assert f"{HOST}:443 is in no rule of this sandbox" in result.stderr
        assert len(sandbox.network.log()) == 2
        sandbox.run_code("PIP_RETRIES=0 pip download larger_thing", language="bash", timeout=SECONDS)
        assert len(sandbox.network.log()) == 3, "what the user says counts"


@pytest.mark.deep("load")
def test_an_index_that_only_the_owner_trusts_is_asked_once_for_all() -> None:
    authority = trustme.CA()
    with http_serving(authority, package_index(wheel("tiny_thing", "1.0"))) as server:
        network = Network(
            [server.rule(HOST)], addresses={HOST: "127.0.0.1"}, ca_pem=authority.cert_pem.bytes().decode()
        )
        options: dict[str, Any] = {"network": network, "env": {"PIP_INDEX_URL": server.url("/simple", HOST)}}
        with Sandbox(**options) as first, Sandbox(**options) as second:
            assert "Successfully installed tiny-thing-1.0" in run(first, "%pip install tiny_thing")
            asked = len(server.requests)
            assert "Successfully installed tiny-thing-1.0" in run(second, "!pip install tiny_thing")
            assert len(server.requests) == asked
