"""Snapshots as files over HTTP: each key's own, within its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet import LimitReached, RametError, Sandbox, SandboxClosed, Snapshot
from tests.images.forging import ExportedFile
from tests.server.running import running_server


@pytest.mark.deep("restarts")
def test_a_snapshot_leaves_a_server_and_comes_back_as_the_callers_own(tmp_path: Path) -> None:
    path = tmp_path / "x.ramet"
    with running_server(tmp_path) as server:
        alice, bob = (server.create_key(name) for name in ("alice", "bob"))
        small = server.create_key("small", "--image-mib", "10", "--memory-mib", "600")
        with Sandbox(url=server.url, api_key=alice) as sandbox:
            sandbox.run_code("x = 41")
            with sandbox.snapshot() as snapshot:
                snapshot.export(path)
                owner = ExportedFile(path).state["about"]["spec"]["owner"]
                assert owner.startswith("key_")
                # An id is of no use to another key.
                with Snapshot.load(path, url=server.url, api_key=bob) as stolen:
                    stolen._snapshot.id, own = snapshot.id, stolen._snapshot.id
                    with pytest.raises(SandboxClosed):
                        stolen.export(tmp_path / "stolen.ramet")
                    stolen._snapshot.id = own
                    # What bob loads is his, although the file says that it is alice's.
                    with Sandbox(stolen) as copy:
                        assert copy.run_code("x + 1").value == "42"
                    snapshot._snapshot.id, hers = own, snapshot.id
                    with pytest.raises(SandboxClosed):
                        snapshot.export(tmp_path / "stolen.ramet")
                    snapshot._snapshot.id = hers
        with pytest.raises(LimitReached, match="memory_mib"):
            Snapshot.load(path, url=server.url, api_key=small, memory_mib=1000)
        with pytest.raises(RametError, match="there is room for 10485760"):
            Snapshot.load(path, url=server.url, api_key=small, memory_mib=512)
        assert not (tmp_path / "stolen.ramet").exists()
