"""What several processes have counted is one value a version."""

from __future__ import annotations

from headrace.batching.statistics import VersionCounts, added_up


def counted(model: str, version: int, **more: object) -> VersionCounts:
    values = {
        "requests": 1, "rows": 2, "batches": 1, "failures": 0, "queue_seconds": 0.5, "request_seconds": 1.0,
        "failure_seconds": 0.0, "last_request_unix_seconds": 5.0, "batch_rows": {2: (1, 0.25)},
    }  # fmt: skip
    return VersionCounts(model, version, **{**values, **more})  # type: ignore[arg-type]


def test_counts_of_one_version_are_summed_and_its_last_request_is_the_latest() -> None:
    other = counted("m", 1, rows=3, last_request_unix_seconds=4.0, batch_rows={2: (1, 0.5), 3: (2, 1.0)})
    (both,) = added_up([counted("m", 1), other])
    assert both == counted(
        "m", 1, requests=2, rows=5, batches=2, queue_seconds=1.0, request_seconds=2.0,
        batch_rows={2: (2, 0.75), 3: (2, 1.0)},
    )  # fmt: skip


def test_versions_are_told_apart_and_in_order() -> None:
    found = added_up([counted("n", 1), counted("m", 10), counted("m", 2), counted("n", 1)])
    assert [(one.model, one.version, one.requests) for one in found] == [
        ("m", 2, 1),
        ("m", 10, 1),
        ("n", 1, 2),
    ]


def test_nothing_is_nothing() -> None:
    assert added_up([]) == []
