"""Output of ``headrace stream inspect``, as text and as JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from headrace.base.terminal import table
from headrace.stream.inspection import FieldReport, Inspection
from headrace.stream.schema import Field

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEADINGS = ("field", "role", "type", "table", "what", "missing", "min", "mean", "max", "first values")
_RIGHT = [_HEADINGS.index(name) for name in ("missing", "min", "mean", "max")]


def as_text(found: Inspection) -> str:
    """Return a few lines of totals, then one line per field."""
    size = f" ({found.bytes / found.rows:,.0f} a row)" if found.rows else ""
    lines = [f"{found.rows:,} rows in {found.batches:,} batches, {found.bytes:,} bytes{size}"]
    if found.schema is not None and found.schema.generator:
        settings = ", ".join(f"{name} {value:g}" for name, value in sorted(found.schema.generator.items()))
        lines.append(f"generated with {settings}")
    if found.first_time is not None and found.last_time is not None:
        lines.append(f"from {_time(found.first_time)} to {_time(found.last_time)}")
    if found.click_rate is not None and found.base_logloss is not None:
        of_views = "" if found.views is None else f"of {found.views:,} views were "
        lines.append(
            f"{found.click_rate:.2%} {of_views}clicked: predicting this rate for every row has logloss "
            f"{found.base_logloss:.5f}"
        )
    if found.optimal_logloss is not None:
        realised = found.realised_logloss
        on_labels = "" if realised is None else f", {realised:.5f} on these labels"
        lines.append(f"optimal logloss {found.optimal_logloss:.5f}{on_labels}")
    if not found.fields:
        return "\n".join(lines)
    shown = table([_HEADINGS, *(_line(report) for report in found.fields)], _RIGHT)
    return "\n".join([*lines, "", shown])


def as_json(found: Inspection) -> str:
    """Return one JSON object; unknown values are null."""
    problem = found.problem
    said = {
        "rows": found.rows,
        "size_bytes": found.bytes,
        "batches": found.batches,
        "views": found.views,
        "click_rate": found.click_rate,
        "base_logloss": found.base_logloss,
        "optimal_logloss": found.optimal_logloss,
        "realised_logloss": found.realised_logloss,
        "first_time": None if found.first_time is None else _time(found.first_time),
        "last_time": None if found.last_time is None else _time(found.last_time),
        "fields": [_object(report) for report in found.fields],
        "schema": None if found.schema is None else json.loads(found.schema.encode()),
        "problem": None if problem is None else problem.message,
    }
    return json.dumps(said)


def _object(report: FieldReport) -> dict[str, object]:
    return {
        "name": report.field.name,
        "role": report.field.role,
        "type": report.arrow_type,
        "first_values": report.first_values,
        "missing": report.missing,
        "distinct": report.distinct,
        "min": report.minimum,
        "mean": report.mean,
        "max": report.maximum,
    }


def _line(report: FieldReport) -> tuple[str, ...]:
    field = report.field
    categorical = field.role == "categorical"
    numbers = (report.minimum, report.mean, report.maximum)
    return (
        field.name,
        field.role,
        report.arrow_type,
        f"{field.table_name}[{field.buckets}] {field.keys}" if categorical else "",
        ", ".join(_what(field, report)),
        f"{report.missing:,}" if report.missing else "",
        *("" if number is None else f"{number:.4g}" for number in numbers),
        ", ".join(report.first_values),
    )


def _what(field: Field, report: FieldReport) -> list[str]:
    return [
        *([] if report.distinct is None else [f"{_about(field)}{report.distinct:,} distinct"]),
        *([f"up to {field.values} values"] if field.values > 1 else []),
        *([f"{field.size} numbers"] if field.role == "vector" else []),
        *(["context"] if field.context else []),
    ]


def _about(field: Field) -> str:
    """Return the prefix of a number of distinct values: it is an estimate if the values are hashed."""
    return "" if field.keys == "bucket" else "about "


def _time(microseconds: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{microseconds} µs since 1970"  # beyond the range of datetime
