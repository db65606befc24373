"""A package index (PEP 503) of small wheels made on the spot, for an HTTP server of these tests."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from urllib.parse import urlsplit

from tests.network.routes import Answering, More
from tests.network.servers import Request


def wheel(name: str, version: str, needs: tuple[str, ...] = (), padding_bytes: int = 0) -> tuple[str, bytes]:
    """File name and content of a wheel with one module, which has its version and, on request, some ballast."""
    info = f"{name}-{version}.dist-info"
    requirements = "".join(f"Requires-Dist: {one}\n" for one in needs)
    files = {
        f"{name}.py": f"version = {version!r}\n" + "#" * padding_bytes,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return f"{name}-{version}-py3-none-any.whl", content.getvalue()


def source(name: str, version: str, backend: str) -> tuple[str, bytes]:
    """File name and content of a source distribution; ``backend`` is the code that would build it."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": backend,
    }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path, text in files.items():
            about = tarfile.TarInfo(f"{name}-{version}/{path}")
            about.size = len(text.encode())
            archive.addfile(about, io.BytesIO(text.encode()))
    return f"{name}-{version}.tar.gz", content.getvalue()


def package_index(*wheels: tuple[str, bytes]) -> More:
    """Pages at /simple/NAME/, with hashes, and the wheels at /packages/FILE."""
    content = dict(wheels)

    def answer(request: Request, answering: Answering) -> bool:
        path = urlsplit(request.target).path
        if path.startswith("/packages/") and (found := content.get(path.removeprefix("/packages/"))) is not None:
            kind = (("Content-Type", "application/zip" if path.endswith(".whl") else "application/gzip"),)
            return answering.whole(found, headers=kind, method=request.method)
        if path.startswith("/simple/"):
            asked = path.removeprefix("/simple/").strip("/")
            links = [_link(name, data) for name, data in wheels if _project(name) == asked]
            if links:
                page = "<!DOCTYPE html>\n<html><body>\n" + "\n".join(links) + "\n</body></html>\n"
                kind = (("Content-Type", "text/html"),)
                return answering.whole(page.encode(), headers=kind, method=request.method)
        return False

    return answer


def _project(file_name: str) -> str:
    """The normalised name of what a wheel holds."""
    return file_name.split("-")[0].lower().replace("_", "-")


def _link(name: str, data: bytes) -> str:
    return f'<a href="/packages/{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>'
