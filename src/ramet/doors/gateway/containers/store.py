"""Records of containers on disk: a gateway that is started anew finds its containers by id and by their cells.

    folder/containers.sqlite    beside the index of files, under the same lock

A container's state is its sandbox's, which the engine keeps on disk. Its record says which sandbox that is, and what
the gateway knows of it. A record is there before its sandbox has run anything, and a sandbox is discarded after its
record is marked: whenever a gateway is killed, the next one finds each sandbox that there is, or discards it.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ramet.doors.gateway.containers.records import CELLS_KEPT, CellRecord
from ramet.web.sqlite_store import SqliteStore, StoreSchema

_log = logging.getLogger("ramet.doors.gateway")

_MIGRATIONS = (
    """
    CREATE TABLE containers (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        place TEXT NOT NULL,
        sandbox TEXT,
        created_seconds REAL NOT NULL,
        used_seconds REAL NOT NULL,
        forked_from TEXT,
        outputs INTEGER NOT NULL,
        notice TEXT NOT NULL
    );
    CREATE TABLE cell_ids (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        container TEXT NOT NULL REFERENCES containers (id) ON DELETE CASCADE,
        tool_use_id TEXT NOT NULL
    );
    CREATE INDEX cell_ids_of_container ON cell_ids (container, number);
    CREATE TABLE cells (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        container TEXT NOT NULL REFERENCES containers (id) ON DELETE CASCADE,
        record TEXT NOT NULL
    );
    CREATE INDEX cells_of_container ON cells (container, number);
    CREATE TABLE uploads (
        container TEXT NOT NULL REFERENCES containers (id) ON DELETE CASCADE,
        file_id TEXT NOT NULL,
        path TEXT NOT NULL,
        PRIMARY KEY (container, file_id)
    );
    CREATE TABLE gone (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        place TEXT NOT NULL,
        why TEXT NOT NULL,
        sandbox TEXT
    );
    CREATE INDEX gone_with_sandbox ON gone (place) WHERE sandbox IS NOT NULL;
    """,
)
_BROKEN = "move it away to start with no containers"
_SCHEMA = StoreSchema(
    _MIGRATIONS,
    name="the records of the containers",
    hint={
        sqlite3.SQLITE_FULL: "make room on that disk",
        sqlite3.SQLITE_CORRUPT: _BROKEN,
        sqlite3.SQLITE_NOTADB: _BROKEN,
    }.get,
    newer="the records {path!r} have version {version}, but this Ramet knows only up to {known}",
    newer_hint="a newer Ramet wrote them: use that one, or another folder",
)

CELL_IDS_KEPT = 200  # of a container, by which a request that names no container finds it
GONE_KEPT = 20_000
_ID_CHARACTERS = 256
_NOTICE_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True)
class StoredContainer:
    """The record of a container, without the state of its sandbox."""

    id: str
    owner: str
    created_seconds: float
    used_seconds: float
    sandbox_id: str | None = None  # None: it has none, or one that is not on disk
    forked_from: str | None = None
    outputs: int = 1  # the number of its folder for outputs
    notice: str = ""  # for the next cell's stderr
    cell_ids: tuple[str, ...] = ()
    cells: tuple[CellRecord, ...] = ()
    uploads: Mapping[str, str] = field(default_factory=dict)  # paths by file id


@dataclass(frozen=True, slots=True)
class GoneContainer:
    """A container that has ended. ``sandbox_id``: of a sandbox that is still to be discarded."""

    id: str
    owner: str
    why: str
    sandbox_id: str | None


class ContainerStore:
    """Owns the SQLite file. Belongs to one thread; every call is quick, and a full disk fails none of them."""

    def __init__(self, path: Path, place: str = "") -> None:
        """``place``: which engine has the sandboxes. Containers of other places stay on disk, and are not found.

        Raises RametError if the file cannot be opened.
        """
        self._place = place
        self._database = SqliteStore(path, _SCHEMA, _complain)

    def __repr__(self) -> str:
        return f"<ContainerStore {self._database!r}>"

    def close(self) -> None:
        self._database.close()

    # Reading, when a gateway starts

    def containers(self) -> list[StoredContainer]:
        """All containers of this place, oldest first."""
        cell_ids = self._lists("SELECT container, tool_use_id FROM cell_ids ORDER BY number")
        cells = self._lists("SELECT container, record FROM cells ORDER BY number")
        uploads = self._lists("SELECT container, file_id, path FROM uploads ORDER BY rowid")
        rows = self._database.execute(
            "SELECT id, owner, created_seconds, used_seconds, sandbox, forked_from, outputs, notice FROM containers "
            "WHERE place = ? ORDER BY number",
            (self._place,),
        )
        return [
            replace(
                StoredContainer(*row),
                cell_ids=tuple(one for (one,) in cell_ids.get(row[0], ())),
                cells=tuple(_cell(text) for (text,) in cells.get(row[0], ())),
                uploads=dict(uploads.get(row[0], ())),
            )
            for row in rows.fetchall()
        ]

    def gone(self) -> list[GoneContainer]:
        """Containers that have ended, oldest first."""
        rows = self._database.execute(
            "SELECT id, owner, why, CASE WHEN place = ? THEN sandbox END FROM gone ORDER BY number", (self._place,)
        )
        return [GoneContainer(*row) for row in rows]

    def _lists(self, statement: str) -> dict[str, list[tuple[Any, ...]]]:
        found: dict[str, list[tuple[Any, ...]]] = {}
        for container, *rest in self._database.execute(statement):
            found.setdefault(container, []).append(tuple(rest))
        return found

    # Writing

    def add(self, one: StoredContainer) -> None:
        with self._writing(), self._surely():
            self._database.execute(
                "INSERT INTO containers (id, owner, place, sandbox, created_seconds, used_seconds, forked_from, "
                "outputs, notice) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    one.id,
                    one.owner,
                    self._place,
                    one.sandbox_id,
                    one.created_seconds,
                    one.used_seconds,
                    one.forked_from,
                    one.outputs,
                    _text(one.notice, _NOTICE_CHARACTERS),
                ),
            )
            self._add_cells(one.id, one.cells)
            self._add_uploads(one.id, one.uploads)

    def has_sandbox(self, container_id: str, sandbox_id: str | None) -> None:
        """Before anything runs in it. None: its sandbox is not one on disk."""
        with self._writing(), self._surely():
            self._database.execute("UPDATE containers SET sandbox = ? WHERE id = ?", (sandbox_id, container_id))

    def used(self, container_id: str, used_seconds: float) -> None:
        with self._writing():
            self._database.execute("UPDATE containers SET used_seconds = ? WHERE id = ?", (used_seconds, container_id))

    def noted(self, container_id: str, notice: str) -> None:
        with self._writing():
            self._database.execute(
                "UPDATE containers SET notice = ? WHERE id = ?", (_text(notice, _NOTICE_CHARACTERS), container_id)
            )

    def cell_begun(self, container_id: str, tool_use_id: str) -> None:
        if len(tool_use_id) > _ID_CHARACTERS:
            return  # not one of ours, and nothing bounds it
        with self._writing(), self._database.transaction():
            self._database.execute(
                "INSERT INTO cell_ids (container, tool_use_id) VALUES (?, ?)", (container_id, _text(tool_use_id))
            )
            self._database.execute(_beyond("cell_ids"), (container_id, container_id, CELL_IDS_KEPT))

    def cell_ended(self, container_id: str, cell: CellRecord, outputs: int, used_seconds: float) -> None:
        with self._writing(), self._database.transaction():
            self._add_cells(container_id, [cell])
            self._database.execute(_beyond("cells"), (container_id, container_id, CELLS_KEPT))
            self._database.execute(
                "UPDATE containers SET used_seconds = ?, outputs = ? WHERE id = ?",
                (used_seconds, outputs, container_id),
            )

    def uploaded(self, container_id: str, uploads: Mapping[str, str]) -> None:
        """These are all files in its folder for inputs."""
        with self._writing(), self._database.transaction():
            self._database.execute("DELETE FROM uploads WHERE container = ?", (container_id,))
            self._add_uploads(container_id, uploads)

    def forget(self, container_id: str, owner: str, why: str) -> None:
        """It has ended. Its sandbox is known until ``discarded``."""
        with self._writing(), self._surely():
            self._database.execute(
                "INSERT OR REPLACE INTO gone (id, owner, place, why, sandbox) "
                "SELECT id, owner, place, ?, sandbox FROM containers WHERE id = ?",
                (_text(why, _NOTICE_CHARACTERS), container_id),
            )
            self._database.execute("DELETE FROM containers WHERE id = ?", (container_id,))
            self._database.execute(
                "DELETE FROM gone WHERE sandbox IS NULL AND number <= (SELECT max(number) FROM gone) - ?", (GONE_KEPT,)
            )

    def discarded(self, container_id: str) -> None:
        with self._writing():
            self._database.execute("UPDATE gone SET sandbox = NULL WHERE id = ?", (container_id,))

    def _add_cells(self, container_id: str, cells: Iterable[CellRecord]) -> None:
        self._database.executemany(
            "INSERT INTO cells (container, record) VALUES (?, ?)",
            [(container_id, json.dumps(asdict(cell))) for cell in cells],
        )

    def _add_uploads(self, container_id: str, uploads: Mapping[str, str]) -> None:
        self._database.executemany(
            "INSERT INTO uploads (container, file_id, path) VALUES (?, ?, ?)",
            [(container_id, file_id, _text(path)) for file_id, path in uploads.items()],
        )

    def _writing(self) -> AbstractContextManager[None]:
        return self._database.writing()

    @contextmanager
    def _surely(self) -> Iterator[None]:
        """A transaction that waits for the disk.

        Its loss in a power cut would leave a sandbox on disk that nobody knows.
        """
        self._database.execute("PRAGMA synchronous = FULL")
        try:
            with self._database.transaction():
                yield
        finally:
            self._database.execute("PRAGMA synchronous = NORMAL")


def _beyond(table: str) -> str:
    """Deletes all rows of a container but the newest."""
    return (
        f"DELETE FROM {table} WHERE container = ? AND number <= "
        f"(SELECT number FROM {table} WHERE container = ? ORDER BY number DESC LIMIT 1 OFFSET ?)"
    )


def _cell(text: str) -> CellRecord:
    return CellRecord(**json.loads(text))


def _text(text: str, characters: int | None = None) -> str:
    """SQLite accepts no lone surrogates, which ids and names from outside may have."""
    return text[:characters].encode("utf-8", "replace").decode("utf-8")


def _complain(message: str) -> None:
    _log.warning("%s", message)
