"""The tables: how good the answers were, how fresh, how many, how late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from demo.replay import FROZEN, NEWEST, SINGLE, Record
from demo.scores import auc, logloss, percentile

Row = tuple[str, ...]

ASKED = {
    NEWEST: "gRPC: a page, newest version",
    FROZEN: "gRPC: the same page, version 1",
    SINGLE: "REST: one film, newest version",
}


class Scores(NamedTuple):
    """How good the newest version was on some rows, and how good the frozen one on the same.

    Attributes:
        rows: How many rows both have answered.
        auc: The newest version's.
        frozen_auc: The frozen one's.
        logloss: The newest version's.
        frozen_logloss: The frozen one's.
    """

    rows: int
    auc: float
    frozen_auc: float
    logloss: float
    frozen_logloss: float


def scores(record: Record, chosen: npt.NDArray[np.bool_]) -> Scores:
    """Score both versions on the rows that both have answered."""
    chosen = chosen & ~np.isnan(record.newest) & ~np.isnan(record.frozen)
    truth, newest, frozen = record.liked[chosen], record.newest[chosen], record.frozen[chosen]
    return Scores(
        int(chosen.sum()),
        auc(truth, newest),
        auc(truth, frozen),
        logloss(truth, newest),
        logloss(truth, frozen),
    )


def cells(one: Scores) -> Row:
    """Write scores."""
    return (
        f"{one.rows:,}",
        f"{one.auc:.4f}",
        f"{one.frozen_auc:.4f}",
        f"{one.logloss:.4f}",
        f"{one.frozen_logloss:.4f}",
    )


def version_rows(record: Record) -> Iterator[Row]:
    """Say what each version answered, how good that was, and how old it became."""
    yield (
        "version",
        "learnt",
        "KiB",
        "served after",
        "replaced at",
        "answered",
        "AUC",
        "v1's",
        "logloss",
        "v1's",
    )
    answered = [version.answered for version in record.versions.values()]
    replaced = [*answered[1:], None]
    first = next(iter(record.versions), 0)
    for (number, version), next_one in zip(record.versions.items(), replaced, strict=True):
        age = f"{(next_one - version.published).total_seconds():.1f} s" if next_one else "-"
        # The server is started when the first one is there.
        lag = f"{(version.answered - version.published).total_seconds():.1f} s" if number > first else "-"
        size = f"{version.size_bytes / 1024:,.0f}"
        yield (
            str(number),
            f"{version.rows:,}",
            size,
            lag,
            age,
            *cells(scores(record, record.version == number)),
        )
    yield ("all", "", "", "", "", *cells(scores(record, record.version > 0)))


def request_rows(record: Record) -> Iterator[Row]:
    """Say what the callers saw."""
    yield ("", "requests", "a second", "predictions", "p50, ms", "p99, ms", "failed")
    for kind, tally in record.tallies.items():
        milliseconds = np.array(tally.latencies_seconds or [np.nan]) * 1000
        yield (
            ASKED[kind],
            f"{len(tally.latencies_seconds):,}",
            f"{len(tally.latencies_seconds) / record.seconds:,.0f}",
            f"{tally.predictions:,}",
            f"{percentile(milliseconds, 50):.2f}",
            f"{percentile(milliseconds, 99):.2f}",
            f"{tally.failures.total()}",
        )


def difference(record: Record) -> float:
    """Give the largest difference between one film's answer alone and on its page, by the same version."""
    same = (record.version == record.single_version) & ~np.isnan(record.single) & ~np.isnan(record.newest)
    return float(np.abs(record.single - record.newest)[same].max(initial=0.0))


def lay_out(rows: list[Row]) -> str:
    """Align the columns: the first to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    ruler = "-" * max(map(len, lines))
    return "\n".join("  " + line.rstrip() for line in [lines[0], ruler, *lines[1:]])


def text(record: Record, summary: Mapping[str, object], server_cpu_seconds: float) -> str:
    """Write everything.

    Args:
        record: What was answered.
        summary: The last line of the trainer.
        server_cpu_seconds: Processor time of the server during the replay.
    """
    predictions = sum(tally.predictions for tally in record.tallies.values())
    requests = sum(len(tally.latencies_seconds) for tally in record.tallies.values())
    return "\n\n".join(
        [
            lay_out(list(version_rows(record))),
            lay_out(list(request_rows(record))),
            f"  Each row was asked about before it was learnt from: the newest version, and version 1.\n"
            f"  One film alone and the same film on its page differ by {difference(record):.1g} at most.\n"
            f"  The server took {server_cpu_seconds / requests * 1e6:.0f} µs of processor time a request, "
            f"{server_cpu_seconds / predictions * 1e6:.0f} µs a prediction.\n"
            f"  The trainer learnt {summary.get('rows', 0):,} rows; it predicted each the moment before, "
            f"with an AUC of {summary.get('auc', 0):.4f}.",
            *(f"  failed: {count} × {line}" for line, count in record.failures.most_common()),
        ]
    )
