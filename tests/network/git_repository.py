"""A git repository over smart HTTP: ``git http-backend`` behind an HTTP server of these tests, as a CGI program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from tests.network.routes import Answering, More
from tests.network.servers import WAIT_SECONDS, Request


def make_repository(folder: Path) -> None:
    """``folder``/project.git, with one commit of one file."""
    work = folder / "work"
    identity = ["-c", "user.name=A person", "-c", "user.email=person@mail.example"]
    _git("init", "-q", "-b", "main", str(work))
    (work / "hello.txt").write_text("hello from git\n")
    _git("-C", str(work), "add", "hello.txt")
    _git("-C", str(work), *identity, "commit", "-q", "-m", "first")
    _git("clone", "-q", "--bare", str(work), str(folder / "project.git"))


def git_over_http(folder: Path) -> More:
    """Repositories below a folder, at /git/NAME.git."""

    def answer(request: Request, answering: Answering) -> bool:
        address = urlsplit(request.target)
        if not address.path.startswith("/git/"):
            return False
        variables = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "PATH_INFO": address.path.removeprefix("/git"),
            "QUERY_STRING": address.query,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.header("Content-Type") or "",
            "CONTENT_LENGTH": str(len(request.body)),
            "HTTP_CONTENT_ENCODING": request.header("Content-Encoding") or "",
            "GIT_PROTOCOL": request.header("Git-Protocol") or "",
        }
        ended = subprocess.run(
            ["git", "http-backend"], input=request.body, env=variables, capture_output=True, timeout=WAIT_SECONDS
        )
        head, _, body = ended.stdout.partition(b"\r\n\r\n")
        lines = [line.decode("latin-1").partition(":") for line in head.split(b"\r\n") if line]
        headers = tuple((name, value.strip()) for name, _, value in lines if name != "Status")
        status = next((int(value.split()[0]) for name, _, value in lines if name == "Status"), 200)
        return answering.whole(body, status, headers)

    return answer


def _git(*arguments: str) -> None:
    # What a person has configured for git must not change what is tested.
    variables = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *arguments], check=True, env=variables, capture_output=True, timeout=WAIT_SECONDS)
