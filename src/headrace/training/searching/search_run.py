"""Wiring of ``headrace train --search``: stream, configurations, loop and table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from headrace.base import terminal
from headrace.base.terminal import Line
from headrace.config.toml_reader import read_table
from headrace.stream.block import Block
from headrace.training.model_toml import to_toml
from headrace.training.options import TrainOptions
from headrace.training.reporting.lines import described
from headrace.training.running.interruptions import Interruptions
from headrace.training.running.loop import EXIT_CODES, run_loop
from headrace.training.running.source import open_stream
from headrace.training.searching.configurations import configurations, read_search
from headrace.training.searching.search import Result, Search
from headrace.training.topic_origin import open_origin

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
