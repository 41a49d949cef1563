"""Writes one of each kind of file that headrace writes, with what must be read from it, as a .tar.xz.

It is run with the headrace that is to be remembered: ``PYTHONPATH=OLD/src python make.py FILE.tar.xz``. What
that release does not have yet (keys, signatures) is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headrace import Engine, ModelSpec
from headrace.archive.lookup.dead_letter_records import DeadLetter, DeadLetters
from headrace.archive.lookup.miss_queue import Wanted
from headrace.archive.operations.open_archive import open_archive_file
from headrace.ctr.files.model_files import read_description
from headrace.training.running.checkpoint import load_checkpoint
from headrace.versions.pins_and_holds import read_control

ARCHIVE = """
store = { kind = "lmdb", path = "store", largest_bytes = 4194304 }
queue = { kind = "lmdb", path = "queue", largest_bytes = 4194304 }
[spaces.halves]
dimension = 3
dtype = "float16"
history_seconds = 864000
[spaces.bytes]
dimension = 4
dtype = "int8"
[tables.users.columns]
age = { dtype = "int64", default = 0 }
country = { dtype = "text", bytes = 2, default = "??" }
[tables.demand.feed]
key = "restaurant"
time = "at"
[tables.demand.windows]
orders = { count = true, seconds = 3600 }
basket = { mean = "euros", seconds = 3600 }
"""
ORDERS = """restaurant,at,euros
luigi,2026-01-01T12:00:10Z,31.5
luigi,2026-01-01T12:03:00Z,18.5
wok,2026-01-01T12:03:20Z,22.0
wok,2026-01-01T12:40:00Z,12.0
"""


def run(*words: str) -> str:
    """Run a verb of the headrace that is remembered."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def knows(*words: str) -> bool:
    """Whether it has a verb."""
    return not subprocess.run(
        [sys.executable, "-m", "headrace", *words, "--help"], capture_output=True, check=False
    ).returncode


def write_models() -> None:
    """A stream, checkpoints, a whole version and a patch of it; keys and signatures."""
    small = ("--shape", "small", "--rows", "1200", "--buckets", "500", "--batch-rows", "400", "--seed", "5")
    run("stream", "generate", *small, "--keys", "hash", "--out", "rows.arrows")
    learning = ("--model", "fm", "--factors", "2", "--batch-rows", "50", "--window-rows", "400")
    publishing = ("--publish", "models/clicks", "--every-rows", "1150", "--patch")
    saving = ("--checkpoint", "checkpoints", "--checkpoint-every-rows", "600")
    run("train", *learning, *publishing, *saving, "rows.arrows")
    Path("models/clicks/headrace.toml").write_text("[versions]\ncount = 2\n")
    if knows("key", "new"):
        made = run("key", "new", "ann", "--file", "keys.toml", "--models", "clicks")
        Path("key.txt").write_text(made)
    if knows("sign"):
        run("signing-key", "signing.pem")
        run("sign", "models", "--key", "signing.pem")
        Path("signing.pem").unlink()


def predictions(version: int, inputs: Mapping[str, list[object]]) -> list[float]:
    """What a version answers."""
    with Engine.in_thread("models") as engine:
        answer = engine.predict_blocking(ModelSpec("clicks", version=version), inputs)
        return [round(float(one), 6) for one in next(iter(answer.values())).ravel()]


def read_models() -> dict[str, object]:
    """What was written of models; then a pin and a hold."""
    schema = read_description(Path("models/clicks/1")).schema
    inputs: dict[str, list[object]] = {
        one.name: [7 * row + len(one.name) for row in range(3)] for one in schema.of("categorical", "dense")
    }
    answers = {str(version): predictions(version, inputs) for version in (1, 2)}
    run("rollback", "models/clicks/1", "--why", "to be remembered")
    run("hold", "models/clicks/2", "--holder", "somebody", "--why", "to be kept")
    checkpoint = load_checkpoint(Path("checkpoints"))
    assert checkpoint is not None
    control = read_control(Path("models/clicks"))
    assert control.pin is not None
    return {
        "inputs": inputs,
        "predictions": answers,
        "checkpoint": {
            "number": checkpoint.number,
            "position": checkpoint.meta["position"],
            "sums": {name: float(np.sum(one, dtype=np.float64)) for name, one in checkpoint.state.items()},
        },
        "pin": {"number": control.pin.number, "why": control.pin.why},
        "holders": sorted(control.holders(2)),
    }


def write_archive() -> dict[str, object]:
    """Vectors with their past, a table, windowed features with their checkpoint, a queue, a dead letter."""
    Path("archive.toml").write_text(ARCHIVE)
    Path("orders.csv").write_text(ORDERS)
    keys = ["a", "b", "k" * 600]
    with open_archive_file(Path("archive.toml")) as archive:
        archive.put("halves", keys, np.arange(9, dtype=np.float32).reshape(3, 3) / 4)
        archive.put("halves", ["a"], np.array([[7.0, 8.0, 9.0]], np.float32))
        archive.put("bytes", keys, np.arange(12, dtype=np.float32).reshape(3, 4))
        archive.put_rows("users", ["u1", "u2"], {"age": [34, 27], "country": ["CH", "AT"]})
        archive.queue.publish([Wanted("halves", 1, f"wanted {number}").message() for number in range(3)])
        letter = DeadLetter(space="halves", version=1, key="dead", reason="no", attempts=5, died=1.5)
        DeadLetters(archive.store).add([letter])
    feed_to = ("--archive", "archive.toml", "--checkpoint", "feed")
    run("archive", "feed", "demand", "orders.csv", *feed_to)
    with open_archive_file(Path("archive.toml")) as archive:
        demand = archive.lookup("demand", ["luigi", "wok"]).values()
        return {
            "halves": archive.lookup("halves", keys).vectors.tolist(),
            "bytes": archive.lookup("bytes", keys).vectors.tolist(),
            "age": archive.lookup("users", ["u1", "u2"]).values()["age"].tolist(),
            "demand": {name: column.tolist() for name, column in demand.items()},
            "wanted": [f"wanted {number}" for number in range(3)],
            "dead": ["dead"],
        }


def main() -> None:
    """Write the file."""
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        write_models()
        expected = {**read_models(), "archive": write_archive()}
        Path("expected.json").write_text(json.dumps(expected, indent=1))
        for lock in Path().rglob("lock.mdb"):  # LMDB's table of readers, made when it is missing
            lock.unlink()
        with tarfile.open(target, "w:xz") as packed:
            for path in sorted(Path().iterdir()):
                packed.add(path.name)


if __name__ == "__main__":
    main()
