"""The table: how good the answers were, how many, how late, and who gave them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demo.replay import Tally
from demo.scores import Numbers, auc, logloss, percentile

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything the table is made of.

    Attributes:
        liked: The truth about the held-out rows.
        descriptions: Of each version.
        mean_batch_rows: Of each version.
        tallies: What the callers saw, by what they spoke.
        seconds: How long the load lasted.
        server_cpu_seconds: Processor time of the server while it lasted.
        swap_seconds: From publishing the second version to its first answer.
    """

    liked: Numbers
    descriptions: dict[int, str]
    mean_batch_rows: dict[int, float]
    tallies: dict[str, Tally]
    seconds: float
    server_cpu_seconds: float
    swap_seconds: float


def together(tallies: list[Tally], version: int) -> Numbers:
    """Give the answers of a version from all callers; NaN where it has not answered."""
    found = np.full(tallies[0].rows, np.nan)
    for tally in tallies:
        if version in tally.answers:
            found = np.where(np.isnan(tally.answers[version]), found, tally.answers[version])
    return found


def version_rows(outcome: Outcome) -> list[Row]:
    """Say what each version answered, and how good that was."""
    tallies = list(outcome.tallies.values())
    columns = []
    for version, description in outcome.descriptions.items():
        answers = together(tallies, version)
        answered = ~np.isnan(answers)
        truth, said = outcome.liked[answered], answers[answered]
        columns.append(
            (
                f"version {version}",
                description,
                f"{auc(truth, said):.4f}",
                f"{logloss(truth, said):.4f}",
                f"{sum(tally.requests[version] for tally in tallies):,}",
                f"{sum(tally.predictions[version] for tally in tallies):,}",
                f"{outcome.mean_batch_rows[version]:.1f} rows",
            )
        )
    names = ("", "model", "AUC of what it answered", "logloss of it", "requests", "predictions", "mean batch")
    return list(zip(names, *columns, strict=True))


def protocol_rows(outcome: Outcome) -> list[Row]:
    """Say what the callers of each protocol saw."""
    columns = []
    for name, tally in outcome.tallies.items():
        milliseconds = np.array(tally.latencies_seconds) * 1000
        columns.append(
            (
                name,
                f"{tally.requests.total():,}",
                f"{tally.requests.total() / outcome.seconds:,.0f}",
                f"{tally.predictions.total() / outcome.seconds:,.0f}",
                f"{percentile(milliseconds, 50):.2f} / {percentile(milliseconds, 99):.2f}",
                f"{tally.failures.total()}",
            )
        )
    names = ("", "requests", "requests/s", "predictions/s", "p50 / p99, ms", "failed, the swap included")
    return list(zip(names, *columns, strict=True))


def lay_out(rows: list[Row]) -> str:
    """Align the columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join(
        ["  " + lines[0], "  " + "-" * max(map(len, lines)), *("  " + line for line in lines[1:])]
    )


def text(outcome: Outcome) -> str:
    """Write the whole table."""
    predictions = sum(tally.predictions.total() for tally in outcome.tallies.values())
    microseconds = outcome.server_cpu_seconds / predictions * 1e6
    failures = [line for tally in outcome.tallies.values() for line in tally.failures]
    return "\n\n".join(
        [
            lay_out(version_rows(outcome)),
            lay_out(protocol_rows(outcome)),
            f"  Version 2 first answered {outcome.swap_seconds * 1000:,.0f} ms after it was published.\n"
            f"  The server spent {microseconds:.1f} µs of processor time per prediction, "
            f"in {outcome.seconds:.1f} s of load.\n"
            "  The callers are Python too and share the machine: they set the pace, not the server.",
            *(f"  failed: {line}" for line in failures),
        ]
    )
