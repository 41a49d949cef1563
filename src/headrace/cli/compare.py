"""``headrace compare ONE OTHER ROWS``: compare the outputs of a converted model with the original's."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.base.terminal import counted
from headrace.cli import common, models
from headrace.config import MODEL_CONFIG_FILE, parse_model_config, read_model_config
from headrace.model.servable import Servable
from headrace.profiling.comparison import Difference, compare
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.registry import load

_EXAMPLES = """examples:
  headrace compare models/credit/1 models/credit/2 rows.csv         the original, and the converted model
  headrace compare skops onnx rows.npy --tolerance 1e-6
"""

_WARNING = """\
warning: the models' outputs differ. A common cause is the conversion to float32: large numbers (times,
identifiers) lose digits, and rows near a tree's threshold take the other branch. Rescale such columns before
training, or serve the original."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="compare",
            help="check a converted model against the original",
            description="Run the same rows through two models, and show by how much their answers differ, "
            "and in how many rows: for a model that was converted to ONNX, quantized or exported.",
            examples=_EXAMPLES,
            failure="rows differ by more than the tolerance, or a model fails",
            run=run,
        ),
    )
    parser.add_argument("one", metavar=models.VERSION, type=Path, help="the original")
    parser.add_argument("other", metavar=models.VERSION, type=Path, help="the model made from it")
    parser.add_argument(
        "rows",
        metavar="FILE",
        type=Path,
        help="rows as clients send them: .csv (columns by name), .npy (a matrix), .npz (inputs by name)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-4,
        metavar="D",
        help="the largest difference to ignore (default %(default)s)",
    )
    parser.add_argument(
        "--allow-code", action="store_true", help="load models that are Python code (model.py)"
    )


def run(options: argparse.Namespace) -> int:
    """Compare the models, and print the differences."""
    if not options.tolerance >= 0:
        raise ConfigError(f"--tolerance: expected a number of 0 or more, got {options.tolerance}")
    rows = _read_rows(options.rows)
    one = _load(options.one, allow_code=options.allow_code)
    try:
        other = _load(options.other, allow_code=options.allow_code)
        try:
            found = compare(one, other, rows, options.tolerance)
        finally:
            other.close()
    finally:
        one.close()
    if options.json:
        common.print_json(_object(options, found))
    else:
        count = counted(found[0].rows, "row")
        print(f"{options.one} ({one.platform}) and {options.other} ({other.platform}), {count}")
        for output in found:
            print(_line(output, options.tolerance))
    if not any(output.differing for output in found):
        return common.DONE
    print(_WARNING, file=sys.stderr)
    return common.FAILED


def _object(options: argparse.Namespace, found: Sequence[Difference]) -> dict[str, object]:
    return {
        "models": [str(options.one), str(options.other)],
        "rows": found[0].rows,
        "tolerance": options.tolerance,
        "outputs": [
            {
                "names": [one.name, one.other_name],
                "differing_rows": one.differing,
                "largest_difference": one.largest
                if one.largest is not None and math.isfinite(one.largest)
                else None,
                "worst_row": one.worst_row,
            }
            for one in found
        ],
    }


def _line(output: Difference, tolerance: float) -> str:
    names = output.name if output.name == output.other_name else f"{output.name}, {output.other_name}"
    beyond = "" if output.largest is None else f" by more than {tolerance:g}"
    verb = "differs" if output.differing == 1 else "differ"
    said = f"  {names}: {counted(output.differing, 'row')} {verb}{beyond}"
    if output.largest is not None:
        said += f"; the largest difference is {output.largest:.3g}"
    if output.worst_row is not None:
        said += f" (row {output.worst_row}: {' and '.join(map(_shown, output.example))})"
    return said


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _load(directory: Path, *, allow_code: bool) -> Servable:
    version = models.find_version(directory)
    try:
        config = parse_model_config(read_model_config(version.parent))
    except OSError as error:
        raise ConfigError(f"{MODEL_CONFIG_FILE} cannot be read: {error.strerror}") from error
    runtime = config.runtime
    return load(
        version,
        RuntimeOptions(
            kind=runtime.kind, trusted=runtime.trusted, allow_code=allow_code, options=runtime.options
        ),
    )


def _read_rows(file: Path) -> Mapping[str, Array]:
    try:
        if file.suffix == ".csv":
            return _read_csv(file)
        if file.suffix not in (".npy", ".npz"):
            raise ConfigError(f"FILE: expected .csv, .npy or .npz, got {file.name}")
        found = np.load(file, allow_pickle=False)
        rows = {"rows": found} if isinstance(found, np.ndarray) else dict(found)
    except OSError as error:
        raise ConfigError(f"FILE: {file} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, csv.Error) as error:
        raise ConfigError(f"FILE: {file.name}: {error}") from error
    if not rows or any(array.ndim == 0 for array in rows.values()):
        raise ConfigError(f"FILE: {file.name}: expected arrays of rows")
    return rows


def _read_csv(file: Path) -> dict[str, Array]:
    """Read columns by name: as numbers if all cells are, with NaN for empty cells; otherwise as texts."""
    with file.open(newline="", encoding="utf-8") as lines:
        names, *rows = list(csv.reader(lines)) or [[]]
    short = next((number for number, row in enumerate(rows, 2) if len(row) != len(names)), None)
    if short is not None:
        raise ConfigError(
            f"FILE: {file.name}: line {short}: expected {len(names)} cells as in the first line, got "
            f"{len(rows[short - 2])}"
        )
    if not rows:
        raise ConfigError(f"FILE: {file.name}: expected a line of names, and then rows")
    return {name: _column([row[index] for row in rows]) for index, name in enumerate(names)}


def _column(cells: list[str]) -> Array:
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells])
    except ValueError:
        return np.array(cells, dtype=object)
