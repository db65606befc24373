"""Errors about files, as the API words them.

ApiError
├── FileUnknown           404  does not exist, or belongs to another owner
├── FileExpired           404  existed, and has expired
├── FileNotDownloadable   400  was uploaded: its owner has it already
├── FileTooLarge          413
└── StoreFull             400  the number or the size of files has reached a limit, of the owner or of all
"""

from __future__ import annotations

from ramet.doors.gateway.errors import ApiError


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
