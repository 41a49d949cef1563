"""Output of a search: a table, and the settings of the best configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from headrace.base import terminal
from headrace.training.model_toml import to_toml
from headrace.training.reporting.lines import described
from headrace.training.searching.search import Result


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
        return f"{comments}#\n# No configuration passes the gates.\n"
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
