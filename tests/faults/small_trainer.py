"""A program that learns something quick, checkpoints and publishes: what faults happen to.

Learning is a recurrence that depends on every step before it, so that a step lost or done twice shows.
Started again, it goes on from the newest checkpoint. Its last line is the checksum of what it has learnt.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

from headrace.base.errors import FailedPrecondition
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from headrace.training.releasing.publishing import Publisher, Training
from headrace.training.running.checkpoint import load_checkpoint, save_checkpoint

ROWS = 100_000
FEATURES = Features.of(Schema(fields=(Field(name="ad", role="categorical", buckets=ROWS - 1),)))
SETTINGS = ModelSettings(kind="fm", factors=16)
CHECKPOINT_STEPS, PUBLISH_STEPS = 3, 4


def learn(table: np.ndarray, step: int) -> None:
    """One step: it depends on what is there, and on nothing else but its number."""
    rows = np.random.default_rng(step).integers(1, ROWS, 2000)
    table[rows] = table[rows[::-1]] * np.float32(0.9) + np.float32(step)


def weights(table: np.ndarray) -> Weights:
    """The model, with everything but the table zero."""
    tables = {"linear": Table.of(np.zeros((ROWS, 1), np.float32)), "embeddings": Table.of(table.copy())}
    dense = {"bias": np.zeros(1, np.float32), "dense": np.zeros(0, np.float32)}
    return Weights(tables=tables, dense=dense)


def main() -> None:
    """Run to the last step: ``DIRECTORY STEPS``."""
    directory, steps = Path(sys.argv[1]), int(sys.argv[2])
    table, first = np.zeros((ROWS, 16), np.float32), 1
    publisher = Publisher(directory / "models/ctr", keep=3, patch=True)
    before = load_checkpoint(directory / "checkpoints")
    if before is not None:
        table[:] = before.state["table"]
        first = int(str(before.meta["step"])) + 1
    print(f"from {first}", flush=True)
    for step in range(first, steps + 1):
        learn(table, step)
        try:
            if step % CHECKPOINT_STEPS == 0:
                save_checkpoint(directory / "checkpoints", {"table": table}, {"step": step})
            if step % PUBLISH_STEPS == 0 or step == steps:
                done = publisher.publish(SETTINGS, FEATURES, weights(table), Training(rows=step))
                print(f"published {done.version}", flush=True)
        except FailedPrecondition as error:
            print(f"failed {step}: {error.message}", flush=True)
    print(hashlib.sha256(table.tobytes()).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
