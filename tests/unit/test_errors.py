"""Errors keep what they say over a wire and over pickle."""

from __future__ import annotations

import errno
import pickle

import pytest

from ramet import errors
from ramet.errors import FileNotFound, RametError, error_from_code, file_error
from ramet.protocol.calls import encode_error, read_error
from ramet.protocol.frames import FROM_ENGINE, FrameDecoder

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RametError)]


def test_each_error_has_a_code_of_its_own() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_wire_and_pickle(kind: type[RametError]) -> None:
    error = kind("what was tried", hint="what to do", details={"argument": "x", "errno": 2, "path": "/a"})
    (frame,) = FrameDecoder(FROM_ENGINE).feed(encode_error(error))
    for copy in (read_error(frame.header), pickle.loads(pickle.dumps(error))):
        assert type(copy) is kind
        assert str(copy) == "what was tried\n\nhint: what to do"
        assert copy.details == error.details


def test_an_unknown_code_is_still_an_error_of_ours() -> None:
    assert type(error_from_code("from_the_future", "m", None, {})) is RametError


def test_a_file_error_is_the_os_error_that_programs_expect() -> None:
    error = file_error("read", "/a", errno.ENOENT)
    assert isinstance(error, FileNotFound)
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.filename) == (errno.ENOENT, "/a")
    assert isinstance(file_error("write", "/a", errno.EROFS), PermissionError)
    assert file_error("write", "/a", errno.ENOSPC).errno == errno.ENOSPC
