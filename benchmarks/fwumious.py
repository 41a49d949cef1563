"""Learning row by row beside Fwumious Wabbit and VowpalWabbit: one core, CPU time, the same rows and tables.

The rows are those of Fwumious Wabbit's own benchmark: two fields that decide the label together, and ten of
10,000 random values each. All read a binary file: the others their caches, which hold hashed values; headrace
its stream, with hashed values and with texts. What each takes to start is measured with one row, and taken
off. Fwumious Wabbit is built outside of the project:

  cargo build --release, with RUSTFLAGS="-C target-cpu=native -l openblas" and no intel-mkl-src in Cargo.toml

and FWUMIOUS names the program. VowpalWabbit comes with `make peers`.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.costs import HEADRACE, job, logloss, on_one_core
from benchmarks.models import CACHE
from benchmarks.processes import PEERS_PYTHON
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from headrace.base.tensors import Array
from headrace.ctr.factory import create
from headrace.ctr.model_settings import Interaction, ModelSettings, Optimizer
from headrace.stream.block import Block, Features
from headrace.stream.block_reader import Reader, ReadSettings
from headrace.stream.schema import METADATA_KEY, Field, Keys, Schema
from headrace.training.options import to_toml

ROWS = int(os.environ.get("FWUMIOUS_ROWS", "1000000"))
FOLDER = CACHE / f"fwumious-{ROWS}"
FIELDS = "ABCDEFGHIJKL"
SLOT_BITS = 18
"""All fields share one table of so many rows, as in Fwumious Wabbit."""
WEIGHT_BITS = 25
"""Its 2**25 weights of 8 factors for 12 fields: 2**18 rows, since it rounds 96 up to 128."""
BLOCK_ROWS = 8192
_READ = ReadSettings(batch_rows=BLOCK_ROWS)
ROUNDS = 3
START_ROUNDS = 4
PASSES = 4
TARGET = 2.0

_LINEAR = Optimizer(kind="adagrad", learning_rate=0.1, initial=1.0)
_VECTORS = Optimizer(kind="adagrad", learning_rate=0.3, initial=1.0)
_BATCHED_VECTORS = Optimizer(kind="adagrad", learning_rate=1.0, initial=0.1)
_NETWORK = Optimizer(kind="adam", learning_rate=0.003)
_KEPT = " ".join(f"--keep {field}" for field in FIELDS)
_COMMON = (
    "--adaptive --sgd --loss_function logistic --link logistic --l2 0.0 --power_t 0.5 --hash all -c "
    f"-l 0.1 -b {WEIGHT_BITS} {_KEPT}"
)
_FACTORS = (  # Their first vectors are uniform: as wide as the normal ones of 0.01 are.
    " ".join(f"--ffm_field {field}" for field in FIELDS)
    + f" --ffm_k 8 --ffm_bit_precision {WEIGHT_BITS} --ffm_learning_rate 0.3 --ffm_power_t 0.5 "
    "--ffm_init_acc_gradient 1.0 --ffm_init_width 0.0346"
)
_LAYERS = (
    "--nn_layers 2 --nn 0:width:25 --nn 0:activation:relu --nn 1:width:25 --nn 1:activation:relu "
    "--nn_learning_rate 0.02 --nn_power_t 0.45 --nn_init_acc_gradient 0.0"
)


@dataclass(frozen=True)
class Contest:
    """A model, for all.

    Attributes:
        name: What it is.
        ours: headrace's settings.
        theirs: Fwumious Wabbit's options.
        vowpal: Whether VowpalWabbit has it, too.
        passes: How often `headrace train` is timed on all rows in one run: often enough that what it takes to
            start is little beside.
        target: How many times Fwumious Wabbit's rows per second are aimed at.
    """

    name: str
    ours: ModelSettings
    theirs: str
    vowpal: bool = False
    passes: int = 1
    target: float | None = TARGET


CONTESTS = (
    Contest(
        "lr",
        ModelSettings(
            kind="lr",
            interactions=(Interaction(fields=("A", "B"), buckets=2**WEIGHT_BITS),),
            linear=_LINEAR,
            batch_rows=BLOCK_ROWS,
        ),
        "--interactions AB",
        vowpal=True,
        passes=PASSES,
    ),
    Contest(
        "ffm",
        ModelSettings(kind="ffm", linear=_LINEAR, embeddings=_VECTORS, batch_rows=BLOCK_ROWS),
        _FACTORS,
    ),
    Contest(
        "deepffm",
        ModelSettings(
            kind="deepffm",
            hidden=(25, 25),
            linear=_LINEAR,
            embeddings=_BATCHED_VECTORS,
            network=_NETWORK,
            batch_rows=512,
        ),
        f"{_FACTORS} {_LAYERS}",
        target=None,
    ),
)


def run(effort: Effort) -> None:
    """Compare each model.

    Args:
        effort: How many turns, at most three: they are long.
    """
    program = os.environ.get("FWUMIOUS", "")
    if not Path(program).is_file():
        print("  left out: FWUMIOUS does not name the program; benchmarks/fwumious.py says how to build it")
        return
    prepare()
    blocks = _blocks(FOLDER / "all" / "once.arrows")
    labels = np.concatenate([block.labels for block in blocks])
    for contest in CONTESTS:
        _compare(contest, Path(program), blocks, labels, min(ROUNDS, effort.rounds))


# ---- The rows --------------------------------------------------------------------------------------


def prepare() -> None:
    """Write the rows, and one row alone, as text and as streams, unless they are there."""
    for name, rows in (("all", ROWS), ("one", 1)):
        folder = FOLDER / name
        if (folder / "hashed.arrows").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        print(f"  writing {rows:,} rows", flush=True)
        (folder / "vw_namespace_map.csv").write_text("".join(f"{field},{field}\n" for field in FIELDS))
        with (folder / "rows.vw").open("w") as lines:
            lines.writelines(_lines(rows))
        (folder / "schema.json").write_bytes(_schema().encode())
        encode = ("stream", "encode", "--format", "vw", "rows.vw", "--schema", "schema.json")
        job((*HEADRACE, *encode, "--out", "once.arrows"), folder)
        _write_streams(folder, PASSES if rows > 1 else 1)


def _write_streams(folder: Path, passes: int) -> None:
    """The rows several times over, and the same with rows of the table in place of texts."""
    blocks = _blocks(folder / "once.arrows")
    rows = np.concatenate([block.indices for block in blocks]) - 1  # The table's first row is row 1 of all.
    columns = {"label": pa.array(np.concatenate([block.labels for block in blocks]) > 0)}
    columns |= {name: pa.array(np.ascontiguousarray(rows[:, at])) for at, name in enumerate(FIELDS)}
    hashed = pa.table(columns).replace_schema_metadata({METADATA_KEY: _schema("bucket").encode()})
    with pa.ipc.open_stream(folder / "once.arrows") as stream:
        texts = stream.read_all()
    for name, table in (("texts", texts), ("hashed", hashed)):
        with pa.ipc.new_stream(str(folder / "unfinished"), table.schema) as writer:
            for _ in range(passes):
                writer.write_table(table, max_chunksize=BLOCK_ROWS)
        (folder / "unfinished").rename(folder / f"{name}.arrows")


def _lines(rows: int) -> Sequence[str]:
    """Animals that like to eat plants, or meat, and ten things that have nothing to do with it."""
    draw = random.Random(1)

    def line() -> str:
        eater, eats = draw.choice(("Herbivore", "Carnivore")), draw.choice(("Plant", "Meat"))
        likes = 1 if (eater == "Herbivore") == (eats == "Plant") else -1
        names = (draw.randint(0, 1000), draw.randint(0, 250))
        animal, food = names if draw.random() < 0.5 else names[::-1]
        others = "".join(f" |{field} {field}{draw.randint(0, 10_000)}" for field in FIELDS[2:])
        return f"{likes} |A {eater}-{animal} |B {eats}-{food}{others}\n"

    return [line() for _ in range(rows)]


def _schema(keys: Keys = "hash") -> Schema:
    text = keys == "hash"
    fields = [
        Field(name=name, role="categorical", table="all", buckets=2**SLOT_BITS, keys=keys, text=text)
        for name in FIELDS
    ]
    return Schema(fields=(Field(name="label", role="label"), *fields))


def _blocks(stream: Path) -> list[Block]:
    with stream.open("rb") as file, Reader(file, _READ) as reader:
        return list(reader)


# ---- The sides -------------------------------------------------------------------------------------


def _compare(contest: Contest, program: Path, blocks: list[Block], labels: Array, rounds: int) -> None:
    losses: dict[str, float] = {}
    measures: dict[str, Callable[[], float]] = {
        "headrace, rows in memory": lambda: _in_memory(contest, blocks),
        "headrace train, hashed": _whole(contest, "headrace train, hashed", "hashed.arrows", losses),
        "headrace train, text": _whole(contest, "headrace train, text", "texts.arrows", losses),
        "Fwumious Wabbit": _other("Fwumious Wabbit", (str(program),), contest.theirs, labels, losses),
    }
    if contest.vowpal:
        command = (str(PEERS_PYTHON), "-m", "vowpalwabbit", "--quiet")
        measures["VowpalWabbit"] = _other("VowpalWabbit", command, contest.theirs, labels, losses)
    _in_memory(contest, blocks[:4])  # Compiles.
    measured = interleaved(measures, rounds)
    losses["headrace, rows in memory"] = losses["headrace train, hashed"]
    lines = [(contest.name, "µs CPU/row", "rows/s", "logloss", "times Fwumious Wabbit's")]
    for name, seconds in measured.items():
        usual = middle(seconds)
        faster = spread(ratios(measured["Fwumious Wabbit"], seconds))
        lines.append(
            (name, f"{usual / ROWS * 1e6:.3f}", f"{ROWS / usual:,.0f}", f"{losses[name]:.4f}", faster)
        )
    print_lines(lines)
    if contest.target is not None:
        for name in ("headrace, rows in memory", "headrace train, hashed"):
            factor = middle(ratios(measured["Fwumious Wabbit"], measured[name]))
            title = f"{contest.name}: {name} ≥ {contest.target:g} × Fwumious Wabbit, median of {rounds}"
            verdict(title, factor >= contest.target, f"{factor:.2f}")


def _in_memory(contest: Contest, blocks: list[Block]) -> float:
    """CPU seconds of the kernels alone."""
    model = create(contest.ours, Features.of(_schema()))
    size = contest.ours.batch_rows
    parts = [block.part(at, at + size) for block in blocks for at in range(0, len(block), size)]
    with on_one_core():
        began = time.thread_time()
        for part in parts:
            model.learn(part)
        return time.thread_time() - began


def _whole(contest: Contest, name: str, stream: str, losses: dict[str, float]) -> Callable[[], float]:
    """CPU seconds of `headrace train`, less those for one row."""
    for folder in ("all", "one"):
        (FOLDER / folder / f"{contest.name}.toml").write_text(to_toml(contest.ours))
    command = (*HEADRACE, "train", stream, "--config", f"{contest.name}.toml", "--rows")
    found = job((*command, str(ROWS)), FOLDER / "all")
    losses[name] = json.loads(found.output.splitlines()[-1])["logloss"]
    return _beyond_start((*command, str(contest.passes * ROWS)), contest.passes)


def _other(
    name: str,
    program: tuple[str, ...],
    options: str,
    labels: Array,
    losses: dict[str, float],
) -> Callable[[], float]:
    """CPU seconds of another program from its cache, less those for one row; its loss from a run before."""
    command = (*program, "--data", "rows.vw", *_COMMON.split(), *options.split())
    for folder in ("all", "one"):
        job((*command, "-p", "predicted.txt"), FOLDER / folder)
    losses[name] = logloss(np.loadtxt(FOLDER / "all" / "predicted.txt", usecols=0), labels)

    return _beyond_start(command)


def _beyond_start(command: Sequence[str], passes: int = 1) -> Callable[[], float]:
    """CPU seconds for all rows, less the fewest for one row."""
    start = min(job(command, FOLDER / "one").cpu_seconds for _ in range(START_ROUNDS))
    return lambda: (job(command, FOLDER / "all").cpu_seconds - start) / passes
