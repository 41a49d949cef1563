"""What the seams (Lease, Predictor, Outcome) cost a plain request of 1 row, beside 63 others: processor time.

After that, what a large message costs whole servers of the same trees (`benchmarks.seam_pictures`).

`--against DIR/src` names another tree, as often as there are trees. Beside them the same model is served with
a `[default]` around it: what one wrapper costs.

A request is measured from ASGI's events to ASGI's events, without the server and the network under it, which
are the same for all: those take about as long again, and differ more from round to round than the seams cost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import seam_pictures
from benchmarks.load import GRPC_BODIES, HTTP_BODIES
from benchmarks.models import CACHE, ROOT, model_directory, model_file
from benchmarks.processes import cores, on_core
from benchmarks.rounds import Effort, middle, print_lines, ratios, spread
from benchmarks.rows import grpc_body, json_body, rows_of_request

THIS = "this tree"
DEFAULTED = "this tree, [default]"
WIRES = {"grpc": "gRPC", "json": "REST"}
STARTS = 4
"""How often all sides are started anew: two processes of one tree differ, too, for as long as they live."""
ROUND_SECONDS = 0.05
"""How long a turn is: the machine's speed drifts, and what is compared must lie close together."""


def run(effort: Effort) -> None:
    """Measure all sides in turns.

    Args:
        effort: How much measuring is done: its rounds and seconds together, cut into short turns. Which other
            trees there are.
    """
    sides = {
        THIS: (ROOT / "src", model_directory()),
        DEFAULTED: (ROOT / "src", defaulted()),
        **{tree_name(tree): (tree, model_directory()) for tree in effort.against},
    }
    rounds = max(8, round(effort.rounds * effort.seconds / ROUND_SECONDS / STARTS))
    measured: dict[str, list[list[dict[str, float]]]] = {wire: [] for wire in WIRES}
    with tempfile.TemporaryDirectory() as bodies:
        write_bodies(Path(bodies))
        for start in range(STARTS):
            with _started(sides, bodies, start) as running:
                for wire in WIRES:
                    measured[wire].append(_in_turns(running, wire, rounds))
    for wire, name in WIRES.items():
        _report(name, list(sides), measured[wire])
    seam_pictures.run(effort, {THIS: ROOT / "src", **{tree_name(tree): tree for tree in effort.against}})


def write_bodies(directory: Path) -> None:
    """Write the requests' bodies into files that sides read."""
    for number in range(GRPC_BODIES):
        (directory / f"grpc-{number}").write_bytes(grpc_body(rows_of_request(1, number)))
    for number in range(HTTP_BODIES):
        (directory / f"json-{number}").write_bytes(json_body(rows_of_request(1, number)))


class Running:
    """A side's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Wait until it is ready."""
        self.process = process
        if self._line() != "ready":
            raise RuntimeError("a side said something else than that it is ready")

    def microseconds(self, wire: str, requests: int) -> float:
        """The processor time of a request."""
        self.process.stdin.write(f"{wire} {requests}\n")  # type: ignore[union-attr]  # it has pipes
        self.process.stdin.flush()  # type: ignore[union-attr]
        return int(self._line()) / 1000

    def _line(self) -> str:
        line: str = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"a side ended with {self.process.wait()}; what it said is above")
        return line.strip()


@contextmanager
def _started(sides: Mapping[str, tuple[Path, Path]], bodies: str, start: int) -> Iterator[dict[str, Running]]:
    """All sides, on one core, in another order each time, with the same seed of Python's hashes."""
    with ExitStack() as stack:
        running = {}
        for name in turned(list(sides), start):
            tree, models = sides[name]
            added = {"PYTHONPATH": str(tree.resolve()), "PYTHONHASHSEED": str(start)}
            running[name] = begun(stack, "benchmarks.seam_side", (str(models), bodies), added)
        yield running


def begun(stack: ExitStack, module: str, arguments: Sequence[str], added: Mapping[str, str]) -> Running:
    """Start a side's process on the first core.

    Args:
        stack: Ends it.
        module: What runs.
        arguments: What it is told.
        added: What its environment has beside this one's.
    """
    process = subprocess.Popen(
        on_core(cores()[0], [sys.executable, "-m", module, *arguments]),
        cwd=ROOT,
        env=os.environ | added,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return Running(stack.enter_context(process))


def turned(names: list[str], start: int) -> list[str]:
    """The names, with another one first."""
    first = start % len(names)
    return [*names[first:], *names[:first]]


def _in_turns(running: Mapping[str, Running], wire: str, rounds: int) -> list[dict[str, float]]:
    """Rounds of all sides, each in another order."""
    some = next(iter(running.values())).microseconds(wire, 640)
    requests = max(64, round(ROUND_SECONDS * 1e6 / some / 64) * 64)
    return [
        {name: running[name].microseconds(wire, requests) for name in turned(list(running), number)}
        for number in range(rounds)
    ]


def _report(wire: str, names: Sequence[str], starts: Sequence[Sequence[Mapping[str, float]]]) -> None:
    cpu = {name: [[one[name] for one in rounds] for rounds in starts] for name in names}
    flat = {name: [value for rounds in cpu[name] for value in rounds] for name in names}
    lines = [("", f"{wire}, CPU µs/req", "lowest … highest start")]
    for name in names:
        medians = [middle(rounds) for rounds in cpu[name]]
        lines.append((name, f"{middle(flat[name]):.2f}", f"{min(medians):.2f} … {max(medians):.2f}"))
    print_lines(lines)
    pairs = [(THIS, other) for other in names[2:]] + [(DEFAULTED, THIS)]
    for one, other in pairs:
        by_start = [middle(ratios(mine, its)) for mine, its in zip(cpu[one], cpu[other], strict=True)]
        more = sorted(ratios(flat[one], flat[other]))
        quarter = len(more) // 4
        difference = middle([mine - its for mine, its in zip(flat[one], flat[other], strict=True)])
        print(
            f"{wire}, {one} / {other}: {middle(more):.3f} ({difference:+.2f} µs) in {len(more)} rounds, half "
            f"of them {more[quarter]:.3f} … {more[-1 - quarter]:.3f}; by start {spread(by_start, 3)}",
            flush=True,
        )


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
