"""What is measured of the network: each scenario is a function from the run's settings to rows."""

from functools import partial

from bench import network, ours
from bench.measure import Contestant, measure
from bench.process import announcing_program
from bench.settings import AGAIN, Settings, row
from bench.table import Row

_REFILL_SECONDS = 0.15


def network_download(settings: Settings) -> list[Row]:
    mebibytes = 128 if settings.quick else 1024
    rows: list[Row] = []
    with announcing_program("bench.web_server") as server:
        url = f"{server}/bytes/{mebibytes << 20}"
        for kind, client in (("urllib", "urllib"), ("curl", "curl")):
            samples = measure(
                [
                    Contestant("ours", partial(network.inside, kind, url)),
                    Contestant("again", partial(network.inside, kind, url)),
                    Contestant("outside", partial(network.outside, kind, url)),
                ],
                settings.rounds(16),
                settings.shuffle,
            )
            scenario = f"download of {mebibytes} MiB in a sandbox, {client}"
            rows += [
                row(scenario, samples, "again", AGAIN),
                # Half the throughput is twice the time.
                row(scenario, samples, "outside", "the same outside, same server", 2),
            ]
    return rows


def network_get(settings: Settings) -> list[Row]:
    with announcing_program("bench.web_server") as server:
        samples = measure(
            [
                Contestant("ours", lambda: network.inside("get", f"{server}/small")),
                Contestant("again", lambda: network.inside("get", f"{server}/small")),
                Contestant("outside", lambda: network.outside("get", f"{server}/small")),
            ],
            settings.rounds(60),
            settings.shuffle,
        )
    scenario = "small GET in a sandbox, kept alive, requests"
    return [row(scenario, samples, "again", AGAIN), row(scenario, samples, "outside", "the same outside", 2)]


def network_create(settings: Settings) -> list[Row]:
    samples = measure(
        [
            Contestant("ours", lambda: ours.repeatedly(lambda: ours.thawed(make=network.with_rules))),
            Contestant("again", lambda: ours.repeatedly(lambda: ours.thawed(make=network.with_rules))),
            Contestant("without", lambda: ours.repeatedly(ours.thawed)),
            Contestant("first", lambda: ours.repeatedly(lambda: ours.thawed(ours.first_cell, network.with_rules))),
            Contestant("first without", lambda: ours.repeatedly(lambda: ours.thawed(ours.first_cell))),
            Contestant("ready", lambda: ours.repeatedly(lambda: ours.handed_over(make=network.with_rules))),
            Contestant("ready without", lambda: ours.repeatedly(ours.handed_over)),
        ],
        settings.rounds(80),
        settings.shuffle,
        settle_seconds=_REFILL_SECONDS,
    )
    thaws, ready = "create with a rule list, thaws", "create with a rule list, thawed ahead"
    first = "create with a rule list + first cell, thaws"
    return [
        row(thaws, samples, "again", AGAIN),
        row(thaws, samples, "without", "create without, thaws", 1.2),
        row(ready, samples, "ready without", "create without, thawed ahead", 1.2, ours_is="ready"),
        row(first, samples, "first without", "the same without", ours_is="first"),
    ]
