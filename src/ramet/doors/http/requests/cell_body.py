"""What a cell is asked for over HTTP, as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.doors.http.access import admission
from ramet.protocol import checks
from ramet.protocol.requests.operations import OperationOptions
from ramet.protocol.requests.options import SECONDS, TEXT, Kind, one_of, option

FORMATS = ("lines", "chunks", "json")


def _check_execution(name: str, execution: object) -> None:
    admission.check_execution_id(execution)


_LANGUAGE = Kind(lambda name, value: TEXT.read(name, value) or "python", TEXT.schema)  # empty: not said


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBody(OperationOptions):
    """The fields of POST /v1/sandboxes/{sandbox_id}/exec."""

    code: str = option(TEXT, "Code of the cell", required=True)
    language: str = option(
        _LANGUAGE,
        "Language of the code",
        "python",
        check=lambda _, language: checks.check_language(language),
        schema={"enum": list(checks.LANGUAGES)},
    )
    timeout: float | None = option(
        SECONDS,
        "Seconds after which the cell is interrupted",
        check=lambda _, timeout: checks.check_timeout(timeout),
        http_help="Seconds after which the cell is interrupted.",
    )
    format: str = option(
        TEXT,
        "Form of the answer",
        "lines",
        check=one_of(FORMATS),
        schema={"enum": list(FORMATS)},
        http_help="`lines`: events of one line each, for the published client. `chunks`: exact pieces and rich "
        "results. `json`: one object in the end.",
    )
    on_disconnect: str = option(
        TEXT,
        "What happens to the cell when the connection breaks",
        "keep",
        check=one_of(admission.ON_DISCONNECT),
        schema={"enum": list(admission.ON_DISCONNECT)},
        http_help="What happens when this connection breaks: the cell goes on and its result can be asked for, or it "
        "is interrupted.",
    )
    execution_id: str | None = option(
        TEXT,
        "Id of the cell",
        check=_check_execution,
        schema={"pattern": f"^{admission.EXECUTION_ID.pattern}$"},
        http_help="An id of your own choice, at random.",
    )
