"""Quality on real clicks and ratings: headrace's models beside scikit-learn, LightGBM and a DeepFM in Keras.

Progressive: each row is predicted before it is learnt from, one pass. Held out: rows that nobody learns from,
after one pass and after several. The rows are shuffled once: in MovieLens-100k people come one after the
other, in the Open Bandit Dataset campaigns do. Of the latter half is held out: it has so few clicks that an
AUC of all of them would be good to two hundredths only.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.costs import auc, logloss
from benchmarks.models import CACHE, ROOT
from benchmarks.processes import PEERS_PYTHON
from benchmarks.rounds import Effort, print_lines
from demo import data as movielens
from headrace.base.tensors import Array
from headrace.ctr.factory import create
from headrace.ctr.model_settings import Kind, ModelSettings, Optimizer
from headrace.stream.block import Block, Features
from headrace.stream.block_joining import Joiner
from headrace.stream.schema import Field, Schema

BANDIT_PACKAGE = "obp==0.4.1"
CAMPAIGNS, POLICIES = ("all", "men", "women"), ("bts", "random")
PASSES = 5
BATCH_ROWS = 256
MOST_GENRES = 6


class Rows(NamedTuple):
    """A data set, in the order it is learnt in.

    Attributes:
        name: What it is called.
        features: Its layout.
        block: All rows.
        learnt: How many of them are learnt from.
    """

    name: str
    features: Features
    block: Block
    learnt: int


class Quality(NamedTuple):
    """How well something predicts: AUC and logarithmic loss, None where it was not measured.

    Attributes:
        progressive: Of the rows that are learnt from, each before it is.
        once: Of those held out, after one pass.
        several: Of those held out, after several.
    """

    progressive: tuple[float, float] | None
    once: tuple[float, float] | None
    several: tuple[float, float]


def run(effort: Effort) -> None:
    """Print a table a data set.

    Args:
        effort: Not used: nothing here is timed.
    """
    for rows in map(shuffled, (films(), bandit())):
        clicks = rows.block.labels
        print(
            f"  {rows.name}: {len(rows.block):,} rows, {clicks.mean():.2%} positive, "
            f"{int(clicks[rows.learnt :].sum()):,} of them held out"
        )
        found = {kind: _ours(rows, settings) for kind, settings in _models().items()}
        _print(found | _others(rows))


def _models() -> dict[str, ModelSettings]:
    online = Optimizer(kind="adagrad", learning_rate=0.05, initial=0.1)
    kinds: tuple[Kind, ...] = ("lr", "fm", "fwfm", "ffm", "deepfm", "deepffm")
    return {
        f"headrace {kind}": ModelSettings(
            kind=kind,
            factors=4 if "ffm" in kind else 8,
            hidden=(64, 32),
            linear=online,
            embeddings=online,
            batch_rows=BATCH_ROWS,
        )
        for kind in kinds
    }


# ---- Learning --------------------------------------------------------------------------------------


def _ours(rows: Rows, settings: ModelSettings) -> Quality:
    model = create(settings, rows.features)
    known, held = rows.block.part(0, rows.learnt), rows.block.part(rows.learnt, len(rows.block))
    random, found = np.random.default_rng(0), []
    progressive = (0.0, 0.0)
    for number in range(PASSES):
        order = random.permutation(rows.learnt) if number else np.arange(rows.learnt)
        again = _taken(known, order)
        predicted = np.concatenate([np.array(model.learn(part)) for part in _parts(again, BATCH_ROWS)])
        if not number:
            progressive = auc(predicted, known.labels), logloss(predicted, known.labels)
        answers = np.concatenate([np.array(model.predict(part)) for part in _parts(held, BATCH_ROWS)])
        found.append((auc(answers, held.labels), logloss(answers, held.labels)))
    return Quality(progressive, found[0], found[-1])


def _parts(block: Block, rows: int) -> Iterator[Block]:
    return (block.part(at, at + rows) for at in range(0, len(block), rows))


def _taken(block: Block, order: Array) -> Block:
    return Block(indices=block.indices[order], dense=block.dense[order], labels=block.labels[order])


def _others(rows: Rows) -> dict[str, Quality]:
    """Each in a process of its own, on the rows as arrays."""
    file = CACHE / "realdata.npz"
    file.parent.mkdir(exist_ok=True)
    np.savez(
        file,
        indices=rows.block.indices,
        fields=rows.features.slot_starts,
        dense=rows.block.dense,
        labels=rows.block.labels,
        learnt=rows.learnt,
    )
    found = {}
    peers = ROOT / "benchmarks" / "peers"
    for python, script in ((PEERS_PYTHON, "realdata_trees.py"), (Path(sys.executable), "realdata_keras.py")):
        command = [str(python), str(peers / script), str(file), str(PASSES), str(BATCH_ROWS)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            said = json.loads(line)
            found[said["name"]] = _scored(rows, file.with_name(said["file"]))
    return found


def _scored(rows: Rows, file: Path) -> Quality:
    labels = rows.block.labels
    held = labels[rows.learnt :]
    with np.load(file) as said:
        several, once, progressive = (said.get(name) for name in ("several", "once", "progressive"))
    known = labels[: rows.learnt]
    return Quality(
        None if progressive is None else (auc(progressive, known), logloss(progressive, known)),
        None if once is None else (auc(once, held), logloss(once, held)),
        (auc(several, held), logloss(several, held)),
    )


def _print(found: dict[str, Quality]) -> None:
    head = ("", "progressive AUC", "logloss", "held out AUC", "logloss", f"{PASSES} passes AUC", "logloss")
    lines: list[Sequence[str]] = [head]
    for name, quality in found.items():
        cells = [("–", "–") if one is None else (f"{one[0]:.4f}", f"{one[1]:.4f}") for one in quality]
        lines.append((name, *(cell for pair in cells for cell in pair)))
    print_lines(lines)


# ---- The rows --------------------------------------------------------------------------------------


def _joined(name: str, schema: Schema, columns: Mapping[str, list[object]], held_out: float) -> Rows:
    features = Features.of(schema)
    block = Joiner(features).join(pa.record_batch(columns))
    return Rows(name, features, block, round(len(block) * (1 - held_out)))


def shuffled(rows: Rows) -> Rows:
    """The same rows in an order that says nothing of time."""
    order = np.random.default_rng(0).permutation(len(rows.block))
    return rows._replace(block=_taken(rows.block, order))


def films() -> Rows:
    """MovieLens-100k in order of time: whether a film got four stars, by who gave them and what it is."""
    data = movielens.load(movielens.fetch(ROOT / ".data" / "ratings"))
    people = [data.people[one.person] for one in data.ratings]
    shown = [data.films[one.film] for one in data.ratings]
    columns: dict[str, list[object]] = {
        "liked": [one.liked for one in data.ratings],
        "person": [one.person for one in data.ratings],
        "film": [one.film for one in data.ratings],
        "age": [str(person.age // 5) for person in people],
        "gender": [person.gender for person in people],
        "occupation": [person.occupation for person in people],
        "year": [str(film.year) for film in shown],
        "genres": [list(film.genres[:MOST_GENRES]) for film in shown],
    }
    fields = [_category(name) for name in columns if name != "liked"]
    schema = Schema(fields=(Field(name="liked", role="label"), *fields))
    return _joined("MovieLens-100k", schema, columns, 0.2)


def _category(name: str) -> Field:
    values = MOST_GENRES if name == "genres" else 1
    return Field(name=name, role="categorical", text=True, buckets=2**16, values=values)


def bandit() -> Rows:
    """The Open Bandit Dataset's sample in order of time: whether clothing that was shown was clicked."""
    folder = _fetched(ROOT / ".data" / "bandit")
    logs = product(POLICIES, CAMPAIGNS)
    rows = [row for policy, campaign in logs for row in _bandit_rows(folder, policy, campaign)]
    rows.sort(key=lambda row: str(row["time"]))
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "time"}
    dense = ("affinity", "item_number")
    fields = [_category(name) for name in columns if name not in ("clicked", *dense)]
    schema = Schema(
        fields=(
            Field(name="clicked", role="label"),
            *fields,
            *(Field(name=name, role="dense") for name in dense),
        )
    )
    return _joined("Open Bandit Dataset, its sample", schema, columns, 0.5)


def _fetched(folder: Path) -> Path:
    """Install the package that carries the data into a folder of its own, once, and never import it."""
    found = folder / "obp" / "dataset" / "obd"
    if not found.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, BANDIT_PACKAGE], check=True, stdin=subprocess.DEVNULL)
    return found


def _bandit_rows(folder: Path, policy: str, campaign: str) -> Iterator[dict[str, object]]:
    place = folder / policy / campaign
    with (place / "item_context.csv").open(newline="") as lines:
        items = {row["item_id"]: row for row in csv.DictReader(lines)}
    with (place / f"{campaign}.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            item = items[row["item_id"]]
            yield {
                "time": row["timestamp"],
                "clicked": row["click"] == "1",
                "campaign": campaign,
                "item": f"{campaign} {row['item_id']}",
                "position": row["position"],
                "hour": str(datetime.fromisoformat(row["timestamp"]).hour),
                **{f"user_{number}": row[f"user_feature_{number}"] for number in range(4)},
                **{f"item_{number}": item[f"item_feature_{number}"] for number in range(1, 4)},
                "item_number": float(item["item_feature_0"]),
                "affinity": float(row.get(f"user-item_affinity_{row['item_id']}") or 0.0),
            }
