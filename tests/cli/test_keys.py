"""`ramet keys`: made, listed, revoked; a running server knows at once."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands import ramet
from tests.server.running import Server


def test_a_key_is_printed_once_and_listed_without_its_secret(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    made = ramet("keys", "create", "--name", "ci", "--sandboxes", "3", "--memory-mib", "512", RAMET_STATE=state)
    assert made.returncode == 0
    secret = made.stdout.strip()
    assert secret.startswith("rmt_")
    assert secret not in made.stderr  # which scripts log
    assert "RAMET_API_KEY" in made.stderr
    listed = ramet("keys", "list", RAMET_STATE=state)
    assert "ci" in listed.stdout
    assert secret not in listed.stdout
    (row,) = json.loads(ramet("keys", "list", "--json", "--state", state).stdout)
    assert (row["name"], row["scope"], row["limits"]["sandboxes"], row["limits"]["memory_mib"]) == (
        "ci",
        "sandboxes",
        3,
        512,
    )
    for file in (tmp_path / "state").iterdir():
        assert secret.encode() not in file.read_bytes()


def test_names_are_used_once(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    assert ramet("keys", "create", "--name", "ci", "--state", state).returncode == 0
    again = ramet("keys", "create", "--name", "ci", "--state", state)
    assert again.returncode == 1
    assert "there is a key 'ci' already" in again.stderr


def test_a_running_server_knows_a_new_key_and_a_revoked_one_at_once(server: Server) -> None:
    state = str(server.state)
    made = json.loads(ramet("keys", "create", "--name", "laptop", "--json", "--state", state).stdout)
    assert ramet("ps", url=server.url, RAMET_API_KEY=made["key"]).returncode == 0
    assert "not valid any more" in ramet("keys", "revoke", "laptop", "--state", state).stdout
    assert ramet("ps", url=server.url, RAMET_API_KEY=made["key"]).returncode == 1
    assert ramet("keys", "revoke", made["id"], "--state", state).returncode == 1


def test_a_key_for_metrics_is_for_nothing_else(server: Server) -> None:
    made = ramet("keys", "create", "--name", "prometheus", "--metrics", "--json", "--state", str(server.state))
    key = json.loads(made.stdout)
    assert key["scope"] == "metrics"
    assert ramet("ps", url=server.url, RAMET_API_KEY=key["key"]).returncode == 1


def test_a_key_is_rotated_changed_and_given_an_end_while_the_server_runs(server: Server) -> None:
    state = str(server.state)
    made = json.loads(ramet("keys", "create", "--name", "team", "--expires", "30d", "--json", "--state", state).stdout)
    assert made["expires_ms"] > made["created_ms"]
    rotated = ramet("keys", "rotate", "team", "--state", state)
    assert "works for another" in rotated.stderr
    old, new = made["key"], rotated.stdout.strip()
    assert [ramet("ps", url=server.url, RAMET_API_KEY=key).returncode for key in (old, new)] == [0, 0]
    changed = ramet("keys", "set", "team", "--sandboxes", "none", "--expires", "never", "--json", "--state", state)
    row = json.loads(changed.stdout)
    assert (row["limits"]["sandboxes"], row["limits"]["concurrent_cells"], row["expires_ms"]) == (None, 1000, None)
    last = ramet("keys", "rotate", "team", "--grace", "0", "--state", state).stdout.strip()
    assert [ramet("ps", url=server.url, RAMET_API_KEY=key).returncode for key in (old, new, last)] == [1, 1, 0]
    rows = json.loads(ramet("keys", "list", "--json", "--state", state).stdout)
    (row,) = [row for row in rows if row["name"] == "team"]
    assert row["last_used_ms"] >= row["created_ms"]
    listed = ramet("keys", "list", "--state", state).stdout
    assert "LAST USED" in listed.splitlines()[0]


def test_what_cannot_be_changed_is_told_in_a_line(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    ramet("keys", "create", "--name", "ci", "--state", state)
    for arguments, said in (
        (("set", "ci"), "give one of --sandboxes"),
        (("set", "nobody", "--cells", "3"), "there is no key 'nobody' in use"),
        (("rotate", "nobody"), "there is no key 'nobody' in use"),
        (("set", "ci", "--expires", "30"), "must be a number and a unit"),
        (("set", "ci", "--expires", "0"), "must be more than 0"),
        (("set", "ci", "--sandboxes", "-1"), "--sandboxes"),
        (("create", "--name", "x", "--metrics", "--operator"), "not allowed with"),
    ):
        done = ramet("keys", *arguments, "--state", state)
        assert done.returncode in (1, 2), arguments
        assert said in done.stderr, arguments
        assert "Traceback" not in done.stderr


def test_keys_alone_shows_its_help() -> None:
    done = ramet("keys")
    assert done.returncode == 2
    assert "ramet keys create --name laptop" in done.stdout
