"""Search (``headrace train --search``): several configurations learn from one pass over a stream.

The configurations are every combination of a grid, and further ones. Each predicts and learns every row, and
is scored on all of them; the best one is reported. A configuration has the same batches as in a run of its
own if its ``batch_rows`` divides the largest ``batch_rows``. It is excluded if its model is too large or too
slow to serve, however good the score.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec
import numpy as np

from headrace.base import terminal
from headrace.base.errors import ConfigError
from headrace.base.terminal import Line
from headrace.config.toml_reader import convert, read_table
from headrace.ctr import factory
from headrace.ctr.click_model import LearningModel
from headrace.ctr.files.model_files import arrays_of
from headrace.ctr.files.quantization import Bits, quantize
from headrace.ctr.model_settings import ModelSettings
from headrace.evaluation.tallies import RUN_DETAIL, Score, Scored, Tally
from headrace.stream.block import Block, Features
from headrace.training.options import TrainOptions, changed, settings_of, to_toml
from headrace.training.reporting.progress import described
from headrace.training.running.loop import EXIT_CODES, Interruptions, error_text, run_loop
from headrace.training.running.source import open_origin, open_stream

MOST_CONFIGURATIONS = 256


class Gates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that a model must keep to be served.

    Attributes:
        max_size_mb: Largest size of its version, in millions of bytes; None for no limit.
        max_latency_ms: Longest time to predict 300 candidates, in milliseconds; None for no limit.
    """

    max_size_mb: float | None = None
    max_latency_ms: float | None = None


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a search.

    Attributes:
        base: Settings that all configurations start from.
        grid: Lists of values by the setting's name, such as ``embeddings.learning_rate``: every combination
            is a configuration.
        configurations: Further configurations, each as changes to the base.
        gates: Limits that a model must keep.
    """

    base: dict[str, object] = {}
    grid: dict[str, list[object]] = {}
    configurations: list[dict[str, object]] = []
    gates: Gates = Gates()


class Configuration(NamedTuple):
    """A configuration that a search tries.

    Attributes:
        name: Its differences from the base.
        settings: Complete settings.
    """

    name: str
    settings: ModelSettings


def read_search(values: Mapping[str, object], where: str) -> SearchSettings:
    """Convert the settings of a search, read from TOML.

    Raises:
        ConfigError: A setting is unknown or invalid.
    """
    return convert(values, SearchSettings, where)


def configurations(search: SearchSettings, base: Mapping[str, object]) -> list[Configuration]:
    """Return all configurations of a search, without duplicates.

    Args:
        search: Settings of the search.
        base: Settings to which the search's own base is applied.

    Raises:
        ConfigError: A setting is invalid, or there are no configurations, or too many.
    """
    names = list(search.grid)
    count = math.prod(map(len, search.grid.values())) if names else 0
    if count > MOST_CONFIGURATIONS:  # before they are made: ten lists of ten values are 10,000,000,000
        raise _wrong_number(count)
    products = itertools.product(*search.grid.values()) if names else iter(())
    wanted = [dict(zip(names, values, strict=True)) for values in products]
    start = changed(base, search.base)
    found: dict[ModelSettings, str] = {}
    for changes in [*wanted, *search.configurations]:
        name = " ".join(f"{key}={_short(value)}" for key, value in changes.items()) or "base"
        found.setdefault(settings_of(changed(start, changes), f"search: {name}"), name)
    if not 1 <= len(found) <= MOST_CONFIGURATIONS:
        raise _wrong_number(len(found))
    return [Configuration(name, settings) for settings, name in found.items()]


def _wrong_number(count: int) -> ConfigError:
    return ConfigError(
        f"search: expected 1 to {MOST_CONFIGURATIONS} configurations, got {count}; add or remove values in "
        "[grid], or tables [[configurations]]"
    )


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{name}={_short(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_short(one) for one in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


LATENCY_ROWS = 300
"""Number of candidates in a prediction whose latency is measured."""

_LATENCY_CALLS = 30
_MEGABYTE = 1e6


class Result(NamedTuple):
    """Result of a configuration.

    Attributes:
        configuration: The configuration.
        score: Score of all rows.
        rows_per_second: Learning speed, without the time of other configurations.
        size_mb: Size of its version, in millions of bytes.
        latency_ms: Median time to predict 300 candidates, in milliseconds.
        out: Reason for exclusion; "" if it is not excluded.
    """

    configuration: Configuration
    score: Score
    rows_per_second: float
    size_mb: float
    latency_ms: float
    out: str


@dataclass(slots=True)
class _Runner:
    """The learning state of one configuration."""

    configuration: Configuration
    model: LearningModel
    tally: Tally
    seconds: float = 0.0
    timed_rows: int = 0
    diverged: bool = False
    failed: bool = False

    def take(self, block: Block) -> None:
        rows = self.configuration.settings.batch_rows
        for start in range(0, len(block), rows):
            part = block.part(start, min(start + rows, len(block)))
            started = time.perf_counter()
            predictions = np.array(self.model.learn(part))
            if self.tally.sums[0, 0]:  # skip the first batch, which may compile kernels
                self.seconds += time.perf_counter() - started
                self.timed_rows += len(part)
            if not np.isfinite(predictions).all():
                self.diverged = True
                predictions = np.nan_to_num(predictions, nan=0.5)  # scored as a constant 0.5
            codes = np.zeros((0, len(part)))
            scored = Scored(predictions, part.labels, part.weights, part.truth, codes, part.views)
            self.tally.add(scored, np.zeros(len(part), np.int64))


class Search:
    """Several configurations that learn from the same blocks.

    Attributes:
        rows: Number of rows that each of them has learnt.
        learning: Name of the configuration that is running or has failed; None if there is none.
    """

    def __init__(
        self,
        wanted: Sequence[Configuration],
        features: Features,
        gates: Gates,
        bits: Bits | None = None,
    ) -> None:
        """Create the models.

        Args:
            wanted: The configurations.
            features: Layout of the rows.
            gates: Limits that a model must keep.
            bits: Bits per weight of tables if they were published; None for 32.
        """
        self._features = features
        self._gates = gates
        self._bits = bits
        self._runners = [
            _Runner(one, factory.create(one.settings, features), Tally(1, RUN_DETAIL)) for one in wanted
        ]
        self._last: Block | None = None
        self.rows = 0
        self.learning: str | None = None

    def take(self, block: Block) -> None:
        """Let all configurations learn from a block; exclude one that fails, and raise its error."""
        for runner in self._runners:
            self.learning, runner.failed = runner.configuration.name, True
            runner.take(block)
            self.learning, runner.failed = None, False
        self._last = block
        self.rows += len(block)

    def act(self) -> None:
        """Do nothing: a search reports when it ends."""

    def explain(self, error: Exception) -> str:
        """Return an error text, with the name of the configuration that failed."""
        said = error_text(error)
        return said if self.learning is None else f"search: {self.learning}: {said}"

    def results(self) -> list[Result]:
        """Return the results, best first, excluded configurations last."""
        found = [self._result(runner) for runner in self._runners]
        self.learning = None
        return sorted(found, key=lambda one: (bool(one.out), one.score.logloss or 0.0))

    def _result(self, runner: _Runner) -> Result:
        if runner.failed:
            return Result(runner.configuration, runner.tally.score(0), 0.0, 0.0, 0.0, "out: failed")
        self.learning = runner.configuration.name
        settings = runner.configuration.settings
        weights = runner.model.strip()
        if self._bits is not None and not runner.diverged:
            weights = quantize(weights, self._bits)
        size_mb = sum(array.nbytes for array in arrays_of(weights).values()) / _MEGABYTE
        latency_ms = 0.0
        if self._last is not None:
            numbers = np.arange(LATENCY_ROWS) % len(self._last)
            indices, dense = self._last.indices[numbers], self._last.dense[numbers]
            scorer = factory.scorer(settings, self._features, weights)
            scorer.predict(indices, dense)  # may compile kernels
            times = []
            for _ in range(_LATENCY_CALLS):
                started = time.perf_counter()
                scorer.predict(indices, dense)
                times.append(time.perf_counter() - started)
            latency_ms = statistics.median(times) * 1e3
        pace = runner.timed_rows / max(runner.seconds, 1e-9)
        out = "out: diverged" if runner.diverged else why_out(self._gates, size_mb, latency_ms)
        return Result(runner.configuration, runner.tally.score(0), pace, size_mb, latency_ms, out)


def why_out(gates: Gates, size_mb: float, latency_ms: float) -> str:
    """Return why a model may not be served, or ""."""
    if gates.max_size_mb is not None and size_mb > gates.max_size_mb:
        return f"out: {size_mb:.1f} MB > {gates.max_size_mb:g}"
    if gates.max_latency_ms is not None and latency_ms > gates.max_latency_ms:
        return f"out: {latency_ms:.2f} ms > {gates.max_latency_ms:g}"
    return ""


_ALL_EXCLUDED = (
    "every configuration is excluded, `out` says why; widen the gates or try smaller models, and lower the "
    "learning rate where a model diverged"
)


def table(results: Sequence[Result], rows: int) -> str:
    """Return the results as a table, best first."""
    head = ("configuration", "logloss", "AUC", "rows/s", "size MB", "300 rows ms", "")
    lines = [head]
    for place, one in enumerate(results):
        note = one.out or ("best" if place == 0 else "")
        numbers = (_number(one.score.logloss), _number(one.score.auc), f"{one.rows_per_second:,.0f}")
        costs = (f"{one.size_mb:,.1f}", f"{one.latency_ms:.2f}")
        lines.append((one.configuration.name, *numbers, *costs, note))
    optimal = results[0].score.optimal_logloss if results else None
    about = f"{rows:,} rows" + (
        f"; the best possible logloss is {optimal:.5f}" if optimal is not None else ""
    )
    return f"{about}\n\n{terminal.table(lines, right=range(1, len(head) - 1))}\n"


def report(results: Sequence[Result], rows: int) -> str:
    """Return a file that ``--config`` takes: the table as comments, and the best configuration."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in table(results, rows).splitlines())
    if not results or results[0].out:
        return f"{comments}#\n# {_ALL_EXCLUDED}\n"
    return f"{comments}\n{to_toml(results[0].configuration.settings)}"


def as_object(results: Sequence[Result], rows: int) -> str:
    """Return the results as one JSON object on a line, best first."""
    said = [
        {
            "name": one.configuration.name,
            "settings": msgspec.to_builtins(one.configuration.settings),
            **described(one.score),
            "rows_per_second": round(one.rows_per_second, 1),
            "size_bytes": round(one.size_mb * 1e6),
            "latency_seconds": round(one.latency_ms / 1e3, 9),
            "out": one.out or None,
        }
        for one in results
    ]
    return json.dumps({"rows": rows, "configurations": said}, allow_nan=False) + "\n"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


def search(options: TrainOptions, file: Path, output: TextIO, errors: TextIO) -> int:
    """Try several configurations in one pass over a stream.

    Args:
        options: Options; a search uses those of the stream, the model as its base, ``quantize`` and
            ``json``.
        file: TOML file with the settings of the search.
        output: Stream for the table and the best configuration, as TOML or JSON.
        errors: Stream for progress and errors.

    Returns:
        The exit code: 0 if the run succeeded and a configuration is not excluded.
    """
    wanted = read_search(read_table(file, f"search: {file}"), f"search: {file.name}")
    tried = configurations(wanted, options.model)
    largest = max(one.settings.batch_rows for one in tried)
    reading = options.reading(largest)
    with (
        open_origin(options, None) as origin,
        open_stream(origin.source if origin else options.input, options.schema, reading) as reader,
        Interruptions() as interruptions,
    ):
        going = Search(tried, reader.features, wanted.gates, options.quantize)
        terminal = Line(errors)
        ended = run_loop(reader, _Shown(going, terminal), options.most_rows, interruptions)
        terminal.clear()
    unfit = _tell_results(going, output, as_object if options.json else report)
    error = ended.error or unfit
    if error is not None:
        errors.write(f"headrace: {error}\n")
    return EXIT_CODES[ended.stopped] or int(error is not None)


class _Shown:
    """A search that shows its progress on the terminal."""

    def __init__(self, going: Search, terminal: Line) -> None:
        self._going = going
        self._terminal = terminal

    @property
    def rows(self) -> int:
        return self._going.rows

    def take(self, block: Block) -> None:
        self._going.take(block)
        if self._terminal.due:
            self._terminal.show(f"{self._going.rows:,} rows")

    def act(self) -> None:
        self._going.act()

    def explain(self, error: Exception) -> str:
        return self._going.explain(error)


def _tell_results(going: Search, output: TextIO, told: Callable[[Sequence[Result], int], str]) -> str | None:
    """Write the results; return an error text, or None."""
    try:
        results = going.results()
        output.write(told(results, going.rows))
        output.flush()
    except BrokenPipeError:  # the command line does not treat it as an error
        raise
    except OSError as error:
        return f"standard output cannot be written: {error.strerror or error}"
    except Exception as error:  # noqa: BLE001  # reported as the run's error
        return going.explain(error)
    if results[0].out:
        return f"search: {_ALL_EXCLUDED}"
    return None
