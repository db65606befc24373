"""What fetches things in these measurements, the same program inside a sandbox and outside. It knows nothing of Ramet.

As a program (`python -m bench.web_client curl|urllib|get URL`) it takes one sample for each line it is sent. Whether
there is a proxy, it has from the variables of its environment, as everybody has.
"""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

GETS = 100


def curl(url: str) -> float:
    """Seconds of a download by curl, its start included."""
    started = time.perf_counter()
    subprocess.run(["curl", "-fsS", "-o", "/dev/null", url], check=True)
    return time.perf_counter() - started


def urllib_download(url: str) -> float:
    """Seconds of a download by Python itself."""
    piece = bytearray(1 << 20)
    started = time.perf_counter()
    with urllib.request.urlopen(url) as answer:
        while answer.readinto(piece):
            pass
    return time.perf_counter() - started


def gets(url: str) -> Callable[[], float]:
    """Seconds of one of many small requests on one connection, by the library that most programs use."""
    import requests

    session = requests.Session()

    def sample() -> float:
        started = time.perf_counter()
        for _ in range(GETS):
            assert session.get(url).content == b"ok\n"
        return (time.perf_counter() - started) / GETS

    return sample


def sampler(kind: str, url: str) -> Callable[[], float]:
    if kind == "get":
        return gets(url)
    download = {"curl": curl, "urllib": urllib_download}[kind]
    return lambda: download(url)


def main() -> None:
    sample = sampler(*sys.argv[1:])
    for _ in sys.stdin:
        print(sample(), flush=True)


if __name__ == "__main__":
    main()
