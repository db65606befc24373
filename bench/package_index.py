"""A package index with no end of packages: `small-N` has one module, `large-N` a thousand that take long to compile.

`python -m bench.package_index` serves it and prints its address.
"""

import base64
import hashlib
import io
import re
import zipfile
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_MODULES = 1000
_FUNCTIONS = 40  # of each module: some 8 kB of source
_FUNCTION = '''
def function_{0}(first, second=None, *others, **options):
    """What it says of itself."""
    found = [one for one in others if one is not second] + [first] * len(options)
    return {{name: found for name, value in options.items() if value}} or found
'''
_WHEEL = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@cache
def _modules(count: int) -> dict[str, str]:
    source = "".join(_FUNCTION.format(number) for number in range(_FUNCTIONS))
    return {f"module_{number}.py": f"number = {number}\n{source}" for number in range(count)}


@cache
def wheel(project: str) -> bytes:
    name = project.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    files = {f"{name}/__init__.py": "", f"{info}/WHEEL": _WHEEL}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    modules = _modules(_MODULES if project.startswith("large") else 1)
    files |= {f"{name}/{path}": text for path, text in modules.items()}
    content = io.BytesIO()
    record = ""
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return content.getvalue()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        page = re.fullmatch(r"/simple/((?:small|large)-\w+)/", self.path)
        file = re.fullmatch(r"/((?:small|large)_\w+)-1\.0-py3-none-any\.whl", self.path)
        if page is not None:
            wheel(page[1])  # now, so that it is there when it is fetched
            name = page[1].replace("-", "_")
            self._answer(
                "text/html", f'<a href="/{name}-1.0-py3-none-any.whl">{name}-1.0-py3-none-any.whl</a>'.encode()
            )
        elif file is not None:
            self._answer("application/zip", wheel(file[1].replace("_", "-", 1)))
        else:
            self.send_error(404)

    def _answer(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
