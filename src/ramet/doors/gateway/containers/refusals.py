"""Errors about containers, as the API words them.

ApiError
├── ContainerUnknown   404  never existed, or belongs to another owner
├── ContainerExpired   404  existed, and is gone
├── ContainerBusy      400  its code waits for tool results
└── ContainersFull     429  the limit is reached, and all are in use
"""

from __future__ import annotations

from ramet.doors.gateway.errors import ApiError


class ContainerUnknown(ApiError):
    def __init__(self, container_id: str) -> None:
        super().__init__(
            404,
            f"container not found: {container_id[:80]}. This gateway has made no container with this id for this key",
            error_code="container_not_found",
        )


class ContainerExpired(ApiError):
    def __init__(self, container_id: str, why: str) -> None:
        super().__init__(
            404,
            f"container {container_id} has expired: {why}. Leave `container` out to get a new one",
            error_code="container_expired",
        )


class ContainerBusy(ApiError):
    def __init__(self, container_id: str, waits_for: list[str]) -> None:
        super().__init__(
            400,
            f"code in container {container_id} waits for the results of {', '.join(waits_for)}: send them, or delete "
            "the container",
            error_code="container_busy",
        )


class ContainersFull(ApiError):
    def __init__(self, count: int) -> None:
        super().__init__(
            429,
            f"{count} containers are in use, which is the limit; delete some, or wait until they expire",
            error_code="too_many_containers",
        )
