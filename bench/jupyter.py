"""Baselines: ipykernel, driven through jupyter_client as quickly as its messages allow.

`start_new_kernel` and `wait_for_ready` are not used: they wait 0.2 seconds for silence, which would flatter us.
"""

import logging
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.measure import Sample, Unavailable, per_cell_in_a_burst

_DEADLINE_SECONDS = 60.0


class Kernel:
    """One ipykernel process and a connected client."""

    def __init__(self) -> None:
        try:
            import ipykernel  # noqa: F401
            from jupyter_client.manager import KernelManager
        except ImportError as error:
            raise Unavailable(f"{error.name} is not installed") from error
        logging.getLogger("traitlets").setLevel(logging.ERROR)
        self._manager: Any = KernelManager()
        self._manager.start_kernel(extra_arguments=["--log-level=ERROR"])
        self._client: Any = self._manager.client()
        self._client.start_channels()
        # Only a message on iopub proves that its subscription stands; before that, output would be lost.
        while True:
            self._client.kernel_info()
            self._client.get_shell_msg(timeout=_DEADLINE_SECONDS)
            try:
                self._client.get_iopub_msg(timeout=0.01)
            except queue.Empty:
                continue
            break

    def run(self, code: str) -> str:
        """What the cell printed, once the kernel has replied and is idle."""
        message_id = self._client.execute(code)
        printed = ""
        while True:
            message = self._client.get_iopub_msg(timeout=_DEADLINE_SECONDS)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        self._client.get_shell_msg(timeout=_DEADLINE_SECONDS)
        return printed

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()


@contextmanager
def kernel_start_and_first_cell() -> Iterator[Sample]:
    def sample() -> float:
        started = time.perf_counter()
        kernel = Kernel()
        printed = kernel.run("print(42)")
        taken = time.perf_counter() - started
        kernel.close()
        assert printed == "42\n", printed
        return taken

    yield sample


@contextmanager
def kernel_warm_cell() -> Iterator[Sample]:
    kernel = Kernel()

    def run_one() -> None:
        printed = kernel.run("print(6*7)")
        assert printed == "42\n", printed

    try:
        yield lambda: per_cell_in_a_burst(run_one)
    finally:
        kernel.close()
