"""What is measured of tools and of the gateway: each scenario is a function from the run's settings to rows."""

from bench import gateway, tools
from bench.measure import Contestant, measure
from bench.settings import AGAIN, Settings, row
from bench.table import Row


def tool_call(settings: Settings) -> list[Row]:
    samples = measure(
        [
            Contestant("ours", lambda: tools.cell("row = lookup(sku='ABC123')")),
            Contestant("again", lambda: tools.cell("row = lookup(sku='ABC123')")),
            Contestant("empty", lambda: tools.cell("")),
        ],
        settings.rounds(120),
        settings.shuffle,
        settle_seconds=0.002,
    )
    scenario = "warm cell with one tool call"
    return [row(scenario, samples, "again", AGAIN), row(scenario, samples, "empty", "an empty cell", 2)]


def tool_calls(settings: Settings) -> list[Row]:
    samples = measure(
        [
            Contestant("ours", tools.many_calls),
            Contestant("again", tools.many_calls),
            Contestant("socketpair", tools.round_trips),
        ],
        settings.rounds(40),
        settings.shuffle,
    )
    scenario = f"{tools.CALLS_IN_A_CELL} tool calls in one cell"
    against = f"{tools.CALLS_IN_A_CELL} round trips of the same JSON over a socketpair"
    return [row(scenario, samples, "again", AGAIN), row(scenario, samples, "socketpair", against, 5)]


def gateway_turn(settings: Settings) -> list[Row]:
    with gateway.running() as places:
        samples = measure(
            [
                Contestant("ours", lambda: gateway.turn(places.gateway)),
                Contestant("again", lambda: gateway.turn(places.gateway)),
                Contestant("by hand", lambda: gateway.by_hand(places.proxy)),
            ],
            settings.rounds(80),
            settings.shuffle,
        )
    scenario = "gateway turn with one cell"
    against = "the same model behind a plain proxy, and the cell embedded"
    return [row(scenario, samples, "again", AGAIN), row(scenario, samples, "by hand", against, 3)]


def gateway_crowd(settings: Settings) -> list[Row]:
    count, turns = (20, 3) if settings.quick else (100, 5)
    with gateway.running() as places:
        seen = gateway.conversations(places.gateway, count, turns)
    scenario = f"{count} gateway conversations at once, {turns} turns each"
    return [
        Row(f"{scenario}: errors", "", "count", ours=float(len(seen.errors)), target=0,
            note="; ".join(seen.errors[:2]) or None),
        Row(f"{scenario}: p50 of a turn", "", "seconds", ours=seen.percentile(50)),
        Row(f"{scenario}: p99 of a turn", "", "seconds", ours=seen.percentile(99)),
    ]  # fmt: skip
