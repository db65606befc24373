"""A tree search over plans: every branch is a fork of a live sandbox, and the best one becomes the original.

The sandbox holds a messy list of orders. A plan is an order of cleaning steps; some steps spoil the work of others, so
that the step which looks best is not the best one to begin with. Nothing is loaded or run twice: a branch starts from
its parent's memory and files.
"""

import time
from dataclasses import dataclass

from ramet import Sandbox

START = """
orders = ["Ada ; 10 EUR", "ada;10", "Bob; 7,50 EUR", "bob;7,50", "Cy;?", "Dee; 1 200 EUR", "dee ; 1 200", "Eve;12"]

def customer(order):
    return order.partition(";")[0]

def is_readable(order):
    name, _, amount = order.partition(";")
    return name == name.strip().lower() and amount.replace(".", "", 1).isdigit()

def score():
    readable = [order for order in orders if is_readable(order)]
    unreadable = len(orders) - len(readable)
    return 10 * len({customer(order) for order in readable}) - 2 * unreadable - (len(readable) - len(set(readable)))

def note(step):
    with open("plan.log", "a") as log:
        print(f"{score():3} points after: {step}", file=log)
"""

STEPS = {
    "drop unreadable orders": "orders = [order for order in orders if is_readable(order)]",
    "lower-case all": "orders = [order.lower() for order in orders]",
    "remove blanks": "orders = [order.replace(' ', '') for order in orders]",
    "remove 'EUR'": "orders = [order.removesuffix('EUR') for order in orders]",
    "decimal points": "orders = [order.replace(',', '.') for order in orders]",
    "one order each": "orders = list({customer(order): order for order in orders}.values())",
}
DEPTH = 4
WIDTH = 3  # branches that are followed on each level; with 1, the search walks into a trap and ends at 10 points


@dataclass
class Branch:
    plan: tuple[str, ...]
    sandbox: Sandbox
    score: int


def grow(branch: Branch) -> list[Branch]:
    """One fork for each step that the plan does not have yet, each with its step taken."""
    steps = [step for step in STEPS if step not in branch.plan]
    grown = []
    for step, child in zip(steps, branch.sandbox.fork(len(steps)), strict=True):
        result = child.run_code(f"{STEPS[step]}\nnote({step!r})\nscore()")
        grown.append(Branch((*branch.plan, step), child, int(result.value or 0)))
    return grown


def search(root: Sandbox) -> tuple[Branch, int]:
    """The best branch, and how many were tried. All others are closed."""
    beam = [Branch((), root, int(root.run_code("score()").value or 0))]
    print(f"level 0: {beam[0].score:3} points for doing nothing")
    tried = 0
    for level in range(1, DEPTH + 1):
        grown = [child for branch in beam for child in grow(branch)]
        grown.sort(key=lambda branch: -branch.score)
        tried += len(grown)
        for done in [*grown[WIDTH:], *beam]:
            if done.sandbox is not root:
                done.sandbox.close()
        beam = grown[:WIDTH]
        print(f"level {level}: {beam[0].score:3} points for {', '.join(beam[0].plan)}")
    for loser in beam[1:]:
        loser.sandbox.close()
    return beam[0], tried


def main() -> None:
    with Sandbox() as root:
        root.run_code(START)
        started = time.perf_counter()
        best, tried = search(root)
        print(f"\n{tried} forks tried and scored in {time.perf_counter() - started:.1f} s. What the best one changed:")
        print(root.diff(best.sandbox, paths=["/root"]))
        root.merge_into(best.sandbox)
        print("\nThe original sandbox, after merge_into:")
        print(root.run_code("print(orders)\nprint(open('plan.log').read(), end='')").stdout, end="")


if __name__ == "__main__":
    main()
