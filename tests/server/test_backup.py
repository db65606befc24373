"""A copy of the state folder, made while the server runs, is a server with the same keys."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.running import Server, running_server
from tests.server.talking import Client


def back_up(state: Path, copy: Path) -> None:
    """As docs/operating.md tells: the database through SQLite, the other two as they are."""
    copy.mkdir(mode=0o700)
    with closing(sqlite3.connect(state / "ramet.db")) as source, closing(sqlite3.connect(copy / "ramet.db")) as to:
        source.backup(to)
    for name in ("ramet.secret", "audit.jsonl"):
        shutil.copy2(state / name, copy / name)


@pytest.mark.deep("restarts")
def test_a_backup_has_the_keys_their_limits_and_the_ends_of_sandboxes(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        key = server.create_key("ci", "--sandboxes", "3")
        client = Client(server.port, key)
        ended, living = client.create(), client.create()
        client.remove(ended)
        restored = Server(tmp_path / "other")
        restored.state.parent.mkdir()
        back_up(server.state, restored.state)
        restored.start()  # beside the first, which goes on
        try:
            again = Client(restored.port, key)
            assert again.ask("GET", "/v1/whoami").json["limits"]["sandboxes"] == 3
            assert again.execute(ended, "1").json["details"]["cause"] == "closed"
            # Sandboxes are processes of the first machine: here they have ended, and that is told.
            assert again.execute(living, "1").json["details"]["cause"] == "lost"
            assert again.stdout(again.create(), "print(6 * 7)") == "42"
            again.close()
        finally:
            restored.stop()
        assert client.stdout(living, "print(1)") == "1"
        client.close()
