"""The last cells of a container, for its description."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ramet.doors.gateway.running.outcomes import CellRequest, Finished

CELLS_KEPT = 20
_CODE_KEPT = 2_000


@dataclass(frozen=True, slots=True)
class CellRecord:
    """One cell that has ended."""

    tool_use_id: str
    name: str
    code: str  # the beginning of it
    began_seconds: float  # since the epoch
    duration_seconds: float
    outcome: int | str  # a return code, or an error code


class CellRecords:
    """The last cells, oldest first. Belongs to one container."""

    def __init__(self, records: Iterable[CellRecord] = ()) -> None:
        self._records = deque(records, maxlen=CELLS_KEPT)

    def __iter__(self) -> Iterator[CellRecord]:
        return iter(self._records)

    def add(
        self, request: CellRequest, ended_seconds: float, duration_seconds: float, finished: Finished
    ) -> CellRecord:
        given, content = request.input, finished.block["content"]
        assert isinstance(content, dict)
        outcome = content.get("error_code", content.get("return_code", 0))
        code = given.get("code") or given.get("command") or ""
        record = CellRecord(
            tool_use_id=request.tool_use_id,
            name=request.name,
            code=str(code)[:_CODE_KEPT],
            began_seconds=ended_seconds - duration_seconds,
            duration_seconds=duration_seconds,
            outcome=outcome if isinstance(outcome, int) else str(outcome),
        )
        self._records.append(record)
        return record
