"""Why a file is not given, or not taken, as the API says it.

ApiError
├── FileUnknown           404  there is none of this id, or it is another owner's
├── FileExpired           404  it was there, and its time is over
├── FileNotDownloadable   400  it was uploaded: its owner has it already
├── FileTooLarge          413
└── StoreFull             400  the owner's files, or all, are as many or as large as they may be
"""

from __future__ import annotations

from ramet.gateway.errors import ApiError


class FileUnknown(ApiError):
    def __init__(self, file_id: str) -> None:
        super().__init__(404, f"file not found: {file_id[:80]}", error_code="file_not_found")


class FileExpired(ApiError):
    def __init__(self, file_id: str) -> None:
        super().__init__(
            404, f"file {file_id} has expired: its content is no longer available", error_code="file_expired"
        )


class FileNotDownloadable(ApiError):
    def __init__(self, file_id: str) -> None:
        super().__init__(
            400,
            f"file {file_id} was uploaded and cannot be downloaded: only files that code made can be downloaded",
            error_code="file_not_downloadable",
        )


class FileTooLarge(ApiError):
    def __init__(self, message: str) -> None:
        super().__init__(413, message)


class StoreFull(ApiError):
    def __init__(self, message: str) -> None:
        super().__init__(400, message, error_code="storage_quota_exceeded")
