"""How optimizers follow a stream that drifts: `python -m benchmarks.forgetting SHAPE DRIFT ROWS KIND`.

Each line of standard input is one configuration, as dotted settings: `linear.kind=adagrad
linear.learning_rate=0.1`; an empty one has the defaults. One that begins with `vw` is VowpalWabbit (`make
peers`) with the options that follow, `-b 24` and the logistic loss. Every row is predicted before it is
learnt. It is for choosing defaults, so it is not among the benchmarks that `make bench` runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.costs import auc, logloss
from benchmarks.processes import PEERS_PYTHON
from benchmarks.rounds import print_lines
from headrace.ctr.factory import create
from headrace.ctr.settings import KINDS, ModelSettings
from headrace.stream.block import Block
from headrace.stream.features import Features
from headrace.stream.generate import SHAPES, GeneratorSettings, generate_batches, schema_of
from headrace.stream.joining import Joiner
from headrace.tensors import Array
from headrace.training.configuration import changed, settings_of

WINDOWS = 10
BATCH_ROWS = 1024


def main() -> None:
    """Print a line a configuration."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forgetting", description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("drift", type=float)
    parser.add_argument("rows", type=int)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=9, help="choose on one, confirm on another")
    asked = parser.parse_args()
    generator = GeneratorSettings(
        rows=asked.rows, seed=asked.seed, shape=asked.shape, drift=asked.drift, batch_rows=BATCH_ROWS
    )
    features = Features.of(schema_of(generator))
    blocks = list(_blocks(generator, features))
    labels = np.concatenate([block.labels for block in blocks])
    lines = [("", "AUC", "logloss", "second half", "thousand rows/s", f"AUC of {WINDOWS} windows")]
    truth = [block.truth for block in blocks if block.truth is not None]
    lines.append(("the best possible", *_scores(np.concatenate(truth), labels), "", _windows(truth, labels)))
    for line in sys.stdin:
        if line.startswith("vw"):
            predicted, pace = _vowpal(generator, line.split()[1:]), ""
        else:
            changes = {name: _value(text) for name, text in (one.split("=") for one in line.split())}
            settings = settings_of(changed({"kind": asked.kind}, changes), "standard input")
            predicted, seconds = _learn(settings, features, blocks)
            pace = f"{len(labels) / seconds / 1000:,.0f}"
        joined = np.concatenate(predicted)
        lines.append(
            (line.strip() or "defaults", *_scores(joined, labels), pace, _windows(predicted, labels))
        )
    print_lines(lines)


def _blocks(generator: GeneratorSettings, features: Features) -> Iterator[Block]:
    joiner = Joiner(features)
    for number, batch in enumerate(generate_batches(generator)):
        yield joiner.join(batch, number * BATCH_ROWS)


def _value(text: str) -> object:
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def _learn(settings: ModelSettings, features: Features, blocks: list[Block]) -> tuple[list[Array], float]:
    """What was predicted, and the processor's seconds, but for the first block, which compiles."""
    model = create(settings, features)
    predicted, began = [np.array(model.learn(blocks[0]))], time.process_time()
    predicted += [np.array(model.learn(block)) for block in blocks[1:]]
    return predicted, time.process_time() - began


def _vowpal(generator: GeneratorSettings, options: list[str]) -> list[Array]:
    """What VowpalWabbit predicts: each field is a namespace, and all dense fields are one."""
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "rows.vw").open("w") as lines:
            for batch in generate_batches(generator):
                lines.writelines(map(_vowpal_line, batch.to_pylist()))
        command = (str(PEERS_PYTHON), "-m", "vowpalwabbit", "--quiet", "-d", "rows.vw", "-p", "predicted")
        logistic = ("--loss_function", "logistic", "--link", "logistic", "-b", "24")
        subprocess.run([*command, *logistic, *options], cwd=folder, check=True)
        return [np.loadtxt(Path(folder) / "predicted", dtype=np.float32, usecols=0)]


def _vowpal_line(row: dict[str, float]) -> str:
    """A row as VowpalWabbit's text; namespaces differ in their first letter, for `-q`."""
    categories = [row[name] for name in row if name.startswith("c")]
    numbers = " ".join(f"{name}:{row[name]:.6g}" for name in row if name.startswith("d"))
    fields = " ".join(f"|{chr(97 + number)} {value}" for number, value in enumerate(categories))
    return f"{1 if row['label'] else -1} {fields} |Z {numbers}\n"


def _scores(predicted: Array, labels: Array) -> tuple[str, str, str]:
    half = len(labels) // 2
    numbers = auc(predicted, labels), logloss(predicted, labels), logloss(predicted[half:], labels[half:])
    return f"{numbers[0]:.4f}", f"{numbers[1]:.5f}", f"{numbers[2]:.5f}"


def _windows(predicted: list[Array], labels: Array) -> str:
    joined = np.concatenate(predicted)
    edges = [len(labels) * number // WINDOWS for number in range(WINDOWS + 1)]
    areas = [auc(joined[start:stop], labels[start:stop]) for start, stop in pairwise(edges)]
    return " ".join(f"{area:.3f}" for area in areas)


if __name__ == "__main__":
    main()
