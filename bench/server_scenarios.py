"""What is measured of the server: each scenario is a function from the run's settings to rows."""

from bench import many_users, ours, server
from bench.measure import Contestant, measure
from bench.settings import AGAIN, Settings, row
from bench.table import Row
from ramet import Sandbox


def http_cell(settings: Settings) -> list[Row]:
    with server.running() as url:
        samples = measure(
            [
                Contestant("ours", lambda: server.warm_cell(url)),
                Contestant("again", lambda: server.warm_cell(url)),
                Contestant("embedded", ours.warm_cell),
            ],
            settings.rounds(120),
            settings.shuffle,
            settle_seconds=0.002,
        )
    scenario = "warm print(6*7) over loopback HTTP"
    return [row(scenario, samples, "again", AGAIN), row(scenario, samples, "embedded", "the same cell embedded", 4)]


def http_cycle(settings: Settings) -> list[Row]:
    with server.running() as url:
        samples = measure(
            [
                Contestant("ours", lambda: server.published_client(url)),
                Contestant("again", lambda: server.published_client(url)),
                Contestant("empty", lambda: server.empty_requests(url)),
            ],
            settings.rounds(80),
            settings.shuffle,
            settle_seconds=0.05,
        )
    scenario = "create + bash + close, published client, new connection"
    return [
        row(scenario, samples, "again", AGAIN),
        row(scenario, samples, "empty", "three empty requests + bash -c 'echo ready'", 4),
    ]


def http_fork(settings: Settings) -> list[Row]:
    with server.running() as url:
        samples = measure(
            [
                Contestant("ours", lambda: server.fork_five(lambda: Sandbox(url=url))),
                Contestant("again", lambda: server.fork_five(lambda: Sandbox(url=url))),
                Contestant("embedded", lambda: server.fork_five(Sandbox)),
            ],
            settings.rounds(60),
            settings.shuffle,
            settle_seconds=0.15,
        )
    scenario = "fork(5) over HTTP"
    return [row(scenario, samples, "again", AGAIN), row(scenario, samples, "embedded", "fork(5) embedded", 1.5)]


def http_stream(settings: Settings) -> list[Row]:
    with server.running() as url:
        samples = measure(
            [
                Contestant("ours", lambda: server.stream_of_output(lambda: Sandbox(url=url))),
                Contestant("again", lambda: server.stream_of_output(lambda: Sandbox(url=url))),
                Contestant("embedded", lambda: server.stream_of_output(Sandbox)),
                Contestant("cat", server.cat_through_a_socket),
            ],
            settings.rounds(24),
            settings.shuffle,
        )
    scenario = "stream of 100 MB of output over HTTP"
    return [
        row(scenario, samples, "again", AGAIN),
        row(scenario, samples, "cat", "cat through a pipe and a plain socket", 4),
        row("the same embedded", samples, "cat", "cat through a pipe and a plain socket", ours_is="embedded"),
    ]


def http_mixed(settings: Settings) -> list[Row]:
    clients, sandboxes, seconds = (8, 40, 15.0) if settings.quick else (32, 200, 60.0)
    with server.running() as url:
        seen = many_users.mixed_load(url, clients, sandboxes, seconds)
    scenario = f"{clients} clients, {sandboxes} sandboxes, {seconds:g} s of cells, forks, files"
    return [
        Row(f"{scenario}: errors of {seen.calls} calls", "", "count", ours=float(len(seen.errors)), target=0,
            note="; ".join(seen.errors[:2]) or None),
        Row(f"{scenario}: p50 of a cell", "", "seconds", ours=seen.percentile(50)),
        Row(f"{scenario}: p99 of a cell", "", "seconds", ours=seen.percentile(99)),
        Row("engine memory at the end", "the same after a quarter of the time", "bytes",
            ours=float(seen.memory_at_end), theirs=float(seen.memory_early), target=1.1),
    ]  # fmt: skip
