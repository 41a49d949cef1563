"""What the seams (Lease, Predictor, Outcome) cost a plain request of 1 row, 64 in flight, by CPU?

`--against DIR/src` names another tree, as often as there are trees. Beside them the same model is served with
a `[default]` around it: what one wrapper costs.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.models import CACHE, ROOT, model_file
from benchmarks.rounds import Effort, interleaved, loaded, middle, ratios, spread, table
from benchmarks.sides import Side, Wire, contenders, headrace

THIS = "this tree"
DEFAULTED = "this tree, [default]"
WIRES: tuple[tuple[Wire, str], ...] = (("grpc", "gRPC"), ("json", "REST"))
ROUNDS_OF_A_START = 2
"""After so many rounds all servers are started anew, in another order.

Two processes of the same tree differ by more than what is measured, for as long as they live (where the model's
64 MB lie in memory, say). The seed of Python's hashes is the same for all.
"""


def run(effort: Effort) -> None:
    """Measure all sides in turns, over gRPC and then over REST.

    Args:
        effort: How much measuring is done, and which other trees there are. Many short rounds say more about
            small differences than few long ones.
    """
    for wire, name in WIRES:
        sides = _sides(wire, effort.against)
        measured = defaultdict(list)
        for start in range(-(-effort.rounds // ROUNDS_OF_A_START)):
            first = start % len(sides)
            turned = [_seeded(side, start) for side in (*sides[first:], *sides[:first])]
            with contenders(turned, 1) as running:
                measures = {one: loaded(side, effort) for one, side in running.items()}
                for one, rounds in interleaved(measures, ROUNDS_OF_A_START).items():
                    measured[one] += rounds
        print(f"over {name}:")
        table({side.name: measured[side.name] for side in sides}, 1)
        cpu = {one: [sample.cpu_microseconds for sample in rounds] for one, rounds in measured.items()}
        for other in sides[2:]:
            _compare(THIS, other.name, cpu[THIS], cpu[other.name])
        _compare(DEFAULTED, THIS, cpu[DEFAULTED], cpu[THIS])


def _sides(wire: Wire, trees: Sequence[Path]) -> list[Side]:
    return [
        of_tree(headrace(wire, name=THIS), ROOT / "src"),
        of_tree(headrace(wire, defaulted(), name=DEFAULTED), ROOT / "src"),
        *(of_tree(headrace(wire, name=tree_name(tree)), tree) for tree in trees),
    ]


def of_tree(side: Side, tree: Path) -> Side:
    """A side that runs the sources of a tree, whatever is installed.

    Args:
        side: What is started.
        tree: A tree's `src`.
    """
    return replace(side, command=replace(side.command, environment={"PYTHONPATH": str(tree.resolve())}))


def _seeded(side: Side, seed: int) -> Side:
    environment = {**side.command.environment, "PYTHONHASHSEED": str(seed)}
    return replace(side, command=replace(side.command, environment=environment))


def tree_name(tree: Path) -> str:
    """What a tree is called: its commit, or its directory if it has none."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or tree.resolve().parent.name


def defaulted() -> Path:
    """A model directory with `ctr` again, and a default for it."""
    directory = CACHE / "defaulted"
    model_file(directory / "ctr" / "1" / "model.onnx", seed=0)
    (directory / "ctr" / "headrace.toml").write_text("[default.values]\np = 0.5\n")
    return directory


def _compare(one: str, other: str, cpu: Sequence[float], of_other: Sequence[float]) -> None:
    more = sorted(ratios(cpu, of_other))
    quarter = len(more) // 4
    microseconds = middle([mine - its for mine, its in zip(cpu, of_other, strict=True)])
    print(
        f"CPU per request, {one} / {other}: {spread(more, 3)}, the middle half of the rounds "
        f"{more[quarter]:.3f} … {more[-1 - quarter]:.3f}; {microseconds:+.2f} µs",
        flush=True,
    )
