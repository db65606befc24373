"""Sandboxes, forks and files through the published client."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import podflare
import pytest

from tests.server.running import Server, running_server

TEN_MEGABYTES = 10_000_000


def test_options_of_a_sandbox(make: Callable[..., Any]) -> None:
    made = make(template="default", timeout_seconds=60, idle_timeout_seconds=30, ram_mib=512, rootfs_gb=1, egress=False)
    assert made.run_code("print('made')").stdout.strip() == "made"


def test_ten_megabytes_up_and_down(published: Any, tmp_path: Path) -> None:
    data = os.urandom(TEN_MEGABYTES)
    local = tmp_path / "data.bin"
    local.write_bytes(data)
    published.upload(str(local), "/root/data.bin")
    assert published.run_code("import os; print(os.path.getsize('/root/data.bin'))").stdout.strip() == str(len(data))
    assert published.download("/root/data.bin") == data
    published.upload(b"from memory", "/tmp/deep/small.bin")
    assert published.download("/tmp/deep/small.bin") == b"from memory"


def test_five_forks_and_a_fork_of_a_fork(published: Any) -> None:
    published.run_code("state = ['parent']\nopen('/root/file', 'w').write('parent')")
    children = published.fork(5)
    assert len({child.id for child in children} | {published.id}) == 6
    for number, child in enumerate(children):
        child.run_code(f"state.append({number})")
    (grandchild,) = children[3].fork()
    assert grandchild.run_code("print(state)").stdout.strip() == "['parent', 3]"
    assert [child.run_code("print(state[-1])").stdout.strip() for child in children] == list("01234")
    assert published.run_code("print(state)").stdout.strip() == "['parent']"
    for child in [*children, grandchild]:
        child.close()
    assert published.run_code("print('alive')").stdout.strip() == "alive"


@pytest.mark.deep("load")  # the client itself looks at every file of both sandboxes
def test_differences_of_files(published: Any) -> None:
    published.run_code("for name in 'abc': open(f'/root/{name}', 'w').write(name)")
    (child,) = published.fork(1)
    child.run_code("import os\nos.remove('/root/a')\nopen('/root/b', 'w').write('new')\nopen('/tmp/d', 'w').write('d')")
    found = published.diff(child)
    told = {kind: [path for path in paths if path.startswith(("/root/", "/tmp/"))] for kind, paths in found.items()}
    assert any("/root/a" in paths for paths in told.values())
    assert any("/root/b" in paths for paths in told.values())
    assert any("/tmp/d" in paths for paths in told.values())
    assert not any("/root/c" in paths for paths in told.values())
    child.close()


def test_the_winner_takes_the_place_of_its_parent(published: Any) -> None:
    published.run_code("state = 'parent'")
    winner, loser = published.fork(2)
    winner.run_code("state = 'winner'")
    published.merge_into(winner)
    assert published.run_code("print(state)").stdout.strip() == "winner"
    assert loser.run_code("print(state)").stdout.strip() == "parent"
    winner.close()
    loser.close()
    assert published.run_code("print(state)").stdout.strip() == "winner"


def test_replay_tells_what_was_printed(published: Any) -> None:
    published.run_code("print('one')\nprint('two')")
    published.run_code("import sys; print('three', file=sys.stderr); raise SystemExit(4)")
    events = [(event.type, event.data) for event in published.replay()]
    assert events == [("stdout", "one"), ("stdout", "two"), ("exit", 0), ("stderr", "three"), ("exit", 4)]


def test_replay_holds_the_last_thousand_events(published: Any) -> None:
    published.run_code("for i in range(1500): print(i)")
    events = list(published.replay())
    assert len(events) == 1000
    assert (events[-1].type, events[-1].data, events[-2].data) == ("exit", 0, "1499")


def test_closing_twice_is_no_error(make: Callable[..., Any], server: Server) -> None:
    made = make()
    made.close()
    made.close()
    with pytest.raises(Exception, match="404|410"):
        list(podflare.Client(host=server.url).exec_stream(made.id, "print(1)"))


def test_an_id_that_nobody_has(server: Server) -> None:
    client = podflare.Client(host=server.url)
    unknown = "sbx_" + "0" * 32
    with pytest.raises(Exception, match="404"):
        list(client.exec_stream(unknown, "print(1)"))
    with pytest.raises(Exception, match="404"):
        client.fork_sandbox(unknown, 1)
    client.destroy_sandbox(unknown)
    client.close()


def test_forks_and_merges_that_are_not_allowed(published: Any, server: Server) -> None:
    client = podflare.Client(host=server.url)
    with pytest.raises(Exception, match="400"):
        client.fork_sandbox(published.id, 1000)
    with pytest.raises(Exception, match="400"):
        client.merge_into(published.id, published.id)
    client.close()


@pytest.mark.deep("load")
def test_keys(tmp_path: Path) -> None:
    with running_server(tmp_path, "--require-key") as server:
        stranger = podflare.Client(host=server.url, api_key="rmt_wrong")
        with pytest.raises(Exception, match="401"):
            stranger.create_sandbox()
        stranger.close()
        key = server.create_key("tests")
        made = podflare.Sandbox(host=server.url, api_key=key)
        assert made.run_code("print(1)").stdout.strip() == "1"
        other = podflare.Client(host=server.url, api_key=server.create_key("others"))
        with pytest.raises(Exception, match="404"):
            list(other.exec_stream(made.id, "print(1)"))
        other.close()
        made.close()


def test_a_program_with_the_key_of_another_server_runs_unchanged_where_none_is_needed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODFLARE_API_KEY", "pf_live_of_the_hosted_service")
    made = podflare.Sandbox(host=server.url)
    assert made.run_code("print(6 * 7)").stdout.strip() == "42"
    made.close()


def test_a_persistent_sandbox_comes_back(server: Server) -> None:
    first = podflare.Sandbox(host=server.url, persistent=True)
    first.run_code("state = 'kept'; open('/root/file', 'w').write('kept')")
    first.close()
    again = podflare.Sandbox.resume(first.id, host=server.url)
    assert again.id != first.id
    assert again.run_code("print(state, open('/root/file').read())").stdout.strip() == "kept kept"
    again.close()
    client = podflare.Client(host=server.url)
    client.delete_space(first.id)
    with pytest.raises(Exception, match="404"):
        client.resume_space(first.id)
    client.close()


def test_the_server_says_that_it_is_well(server: Server) -> None:
    client = podflare.Client(host=server.url)
    assert client.healthz() is True
    client.close()


def test_egress_is_on_or_off(make: Callable[..., Any], server: Server) -> None:
    variables = "import os; print(sorted(name for name in os.environ if name.endswith('_PROXY')))"
    closed, opened = make(egress=False), make(egress=True)
    assert closed.run_code(variables).stdout.strip() == "[]"
    assert "HTTPS_PROXY" in opened.run_code(variables).stdout
    with urllib.request.urlopen(f"{server.url}/v1/sandboxes/{opened.id}/network") as answer:
        assert json.load(answer)["rules"] == ["open"]


def test_a_resumed_sandbox_has_the_egress_that_resuming_asks_for(server: Server) -> None:
    first = podflare.Sandbox(host=server.url, persistent=True, egress=True)
    first.close()
    again = podflare.Sandbox.resume(first.id, host=server.url)
    assert again.run_code("import os; print('HTTP_PROXY' in os.environ)").stdout.strip() == "False"
    again.close()
    client = podflare.Client(host=server.url)
    client.delete_space(first.id)
    client.close()
