"""Wiring of ``headrace train --search``: stream, configurations, loop and table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from headrace.base.terminal import Line
from headrace.config.toml_reader import read_table
from headrace.stream.block import Block
from headrace.training.options import TrainOptions
from headrace.training.running.interruptions import Interruptions
from headrace.training.running.loop import EXIT_CODES, take_all
from headrace.training.running.source import open_stream
from headrace.training.searching.configurations import configurations, read_search
from headrace.training.searching.search import Result, Search
from headrace.training.searching.table import as_object, report
from headrace.training.topic_origin import open_origin


def search(options: TrainOptions, file: Path, output: TextIO, errors: TextIO) -> int:
    """Try several configurations in one pass over a stream.

    Args:
        options: Options of the search; those of the stream, the model as the base, ``quantize`` and ``json``
            are used.
        file: TOML file with the settings of the search.
        output: Stream for the table and the best configuration, as TOML or JSON.
        errors: Stream for progress and errors.

    Returns:
        The exit code: 0 if the run succeeded and a configuration passes the gates.
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
        ended = take_all(reader, _Shown(going, terminal), options.most_rows, interruptions)
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
        return "search: no configuration passes the gates; widen them, or try smaller models"
    return None
