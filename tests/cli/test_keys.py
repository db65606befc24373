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


def test_keys_alone_shows_its_help() -> None:
    done = ramet("keys")
    assert done.returncode == 2
    assert "ramet keys create --name laptop" in done.stdout
