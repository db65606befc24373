"""What is measured: each scenario is a function from the run's settings to rows."""

from collections.abc import Callable

from bench import (
    crowd,
    fork_scenarios,
    history_scenarios,
    image_scenarios,
    network_scenarios,
    ours,
    packages,
    server_scenarios,
    tool_scenarios,
)
from bench.bubblewrap import bubblewrap_run
from bench.in_process import in_process
from bench.jupyter import kernel_start_and_first_cell, kernel_warm_cell
from bench.measure import Contestant, Unavailable, measure
from bench.plain_fork import plain_fork
from bench.settings import AGAIN, Settings, row
from bench.table import Row

# The engine thaws a few sandboxes ahead. A create that gets one of those is what a caller mostly sees, but its work was
# done before; one that thaws works while the caller waits. Both are shown, and told apart by the engine's own count.
_READY = "thawed ahead"
_THAWS = "thaws"
# Long enough for the pools to be full again.
_REFILL_SECONDS = 0.08


def first_cell(settings: Settings) -> list[Row]:
    samples = measure(
        [
            Contestant("ready", lambda: ours.repeatedly(lambda: ours.handed_over(ours.first_cell))),
            Contestant("thaws", lambda: ours.repeatedly(lambda: ours.thawed(ours.first_cell))),
            Contestant("again", lambda: ours.repeatedly(lambda: ours.thawed(ours.first_cell))),
            Contestant("bwrap", bubblewrap_run),
            # Half a second each: a quarter of the rounds gives a median that is steady enough.
            Contestant("ipykernel", kernel_start_and_first_cell, share=0.25),
        ],
        settings.rounds(80),
        settings.shuffle,
        settle_seconds=_REFILL_SECONDS,
    )
    thaws, ready = f"create + first cell, {_THAWS}", f"create + first cell, {_READY}"
    return [
        row(thaws, samples, "again", AGAIN, ours_is="thaws"),
        row(thaws, samples, "ipykernel", "ipykernel, start + first cell", 0.03, ours_is="thaws"),
        row(thaws, samples, "bwrap", "bwrap --unshare-all ... python -c", 0.5, ours_is="thaws"),
        row(ready, samples, "ipykernel", "ipykernel, start + first cell", ours_is="ready"),
        row(ready, samples, "bwrap", "bwrap --unshare-all ... python -c", ours_is="ready"),
    ]


def create(settings: Settings) -> list[Row]:
    modules = ours.modules_of_a_sandbox()
    samples = measure(
        [
            Contestant("ready", lambda: ours.repeatedly(ours.handed_over)),
            Contestant("thaws", lambda: ours.repeatedly(ours.thawed)),
            Contestant("again", lambda: ours.repeatedly(ours.thawed)),
            Contestant("fork", lambda: plain_fork(modules)),
        ],
        settings.rounds(120),
        settings.shuffle,
        settle_seconds=_REFILL_SECONDS,
    )
    thaws = f"create alone, pooled pods, {_THAWS}"
    return [
        row(thaws, samples, "again", AGAIN, ours_is="thaws"),
        # The target is for this row: the other one forks nothing while the clock runs.
        row(thaws, samples, "fork", "os.fork() of a plain process, same modules", 2, ours_is="thaws"),
        Row(f"create alone, {_READY}", "", "seconds", ours=samples["ready"].median),
    ]


def warm_cell(settings: Settings) -> list[Row]:
    samples = measure(
        [
            Contestant("ours", ours.warm_cell),
            Contestant("again", ours.warm_cell),
            Contestant("ipykernel", kernel_warm_cell),
            Contestant("in process", in_process),
        ],
        settings.rounds(120),
        settings.shuffle,
        settle_seconds=0.002,
    )
    scenario = "warm print(6*7) cell"
    return [
        row(scenario, samples, "again", AGAIN),
        row(scenario, samples, "ipykernel", "ipykernel", 0.07),
        row(scenario, samples, "in process", "IPython run_cell + socketpair round trip", 1.5),
    ]


def memory(settings: Settings) -> list[Row]:
    count = 25 if settings.quick else 200
    scenario = f"unique memory each, {count} alive, pandas cell"
    try:
        measured = crowd.memory_of_each(count)
    except Unavailable as error:
        return [Row(scenario, "", "bytes", note=str(error))]
    return [
        Row(scenario, "", "bytes", ours=measured.median_bytes, target=5e6),
        Row(f"the same, largest of {count}", "", "bytes", ours=float(measured.largest_bytes)),
    ]


def stream(settings: Settings) -> list[Row]:
    samples = measure([Contestant("ours", ours.print_to_event)], settings.rounds(80), settings.shuffle)
    return [Row("print to event in a stream", "", "seconds", ours=samples["ours"].median)]


def close(settings: Settings) -> list[Row]:
    samples = measure([Contestant("ours", ours.close_alone)], settings.rounds(80), settings.shuffle)
    return [Row("close", "", "seconds", ours=samples["ours"].median)]


def alive(settings: Settings) -> list[Row]:
    counts = [1, 10, 50] if settings.quick else [1, 10, 100, 500]
    medians = crowd.create_among(counts, settings.rounds(40), _REFILL_SECONDS)
    return [
        Row(
            f"create with {count} alive, {_THAWS}",
            "create with 1 alive" if count > 1 else "",
            "seconds",
            ours=medians[count],
            theirs=medians[1] if count > 1 else None,
        )
        for count in counts
    ]


SCENARIOS: dict[str, Callable[[Settings], list[Row]]] = {
    "first-cell": first_cell,
    "create": create,
    "warm-cell": warm_cell,
    "memory": memory,
    "stream": stream,
    "close": close,
    "alive": alive,
    "fork": fork_scenarios.fork_large,
    "fork-objects": fork_scenarios.fork_objects,
    "fork-small": fork_scenarios.fork_small,
    "fork-threads": fork_scenarios.fork_threads,
    "fork-generations": fork_scenarios.fork_generations,
    "fork-memory": fork_scenarios.fork_memory,
    "fork-files": fork_scenarios.fork_files,
    "restore": fork_scenarios.restore,
    "template-image": image_scenarios.template_image,
    "image-load": image_scenarios.image_load,
    "image-increment": image_scenarios.image_increment,
    "image-neighbours": image_scenarios.image_neighbours,
    "image-sleepers": image_scenarios.image_sleepers,
    "history-pause": history_scenarios.pause,
    "history-undo": history_scenarios.undo,
    "history-cells": history_scenarios.cells_in_a_row,
    "history-rewrite": history_scenarios.rewrite,
    "http-cell": server_scenarios.http_cell,
    "http-cycle": server_scenarios.http_cycle,
    "http-fork": server_scenarios.http_fork,
    "http-stream": server_scenarios.http_stream,
    "http-mixed": server_scenarios.http_mixed,
    "tool-call": tool_scenarios.tool_call,
    "tool-calls": tool_scenarios.tool_calls,
    "gateway-turn": tool_scenarios.gateway_turn,
    "gateway-crowd": tool_scenarios.gateway_crowd,
    "network-download": network_scenarios.network_download,
    "network-get": network_scenarios.network_get,
    "network-create": network_scenarios.network_create,
    "install-again": packages.install_again,
}
