"""Common parts of the verbs that process a whole space: reading it, and showing the progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.base.terminal import Line
from headrace.cli import number_types
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.operations.space_versions import Whole
    from headrace.similarity.stored_rows import Metric, Progress, Rows

LARGEST_SIMILARITY = 1e15
"""The largest distance or product that can be requested."""


def add_most_bytes(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits the size of the space."""
    parser.add_argument(
        "--most-bytes",
        metavar="N",
        type=number_types.whole("most-bytes", least=1, most=2**50),
        default=16 * 1024**3,
        help="maximum bytes of vectors to read into memory (default 17179869184)",
    )


def read(options: argparse.Namespace, progress: Progress) -> Whole:
    """Read the space that the options name.

    Raises:
        NotFound: There is no such space, or version.
        TooLarge: The space exceeds the limit.
        Unavailable: The store does not answer.
    """
    from headrace.archive.operations.space_versions import read_whole  # noqa: PLC0415 - not needed to list the verbs

    with archive_options.open_archive_of(options) as archive:
        return read_whole(
            archive,
            options.space,
            options.version,
            most_bytes=options.most_bytes,
            progress=lambda keys: progress("reading", keys, 0),
        )


def rows_of(whole: Whole, metric: Metric) -> Rows:
    """Return the vectors of a space as comparable rows."""
    from headrace.similarity.stored_rows import Rows  # noqa: PLC0415 - not needed to list the verbs

    return Rows(whole.vectors, metric, scales=whole.scales)


@contextmanager
def progress_line() -> Iterator[Progress]:
    """Yield a function that shows the progress on standard error, if that is a terminal."""
    line = Line(sys.stderr)

    def show(what: str, done: int, total: int) -> None:
        if line.due:
            line.show(f"{what}: {done / total:.0%}" if total else f"{what}: {done:,}")

    try:
        yield show
    finally:
        line.clear()


def measured(metric: Metric) -> str:
    """Return the name of a metric's values."""
    return {"cosine": "cosine", "dot": "product", "l2": "distance"}[metric]
