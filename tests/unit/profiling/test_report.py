"""What a table, JSON and a trace make of events."""

from __future__ import annotations

from headrace.profiling.report import Event, Profile, as_json, as_table, trace

EVENTS = [
    Event("first", "MatMul", 1000.0, 30.0, "[2, 3]", 1),
    Event("copy", "Concat", 1030.0, 10.0, "[2, 6]", 1),
    Event("first", "MatMul", 1050.0, 50.0, "[2, 3]", 2),
    Event("copy", "Concat", 1100.0, 10.0, "[2, 6]", 1),
]
PROFILE = Profile("onnx", "serving", 2, 2, 60.0, EVENTS)


def test_operations_are_added_up_longest_first() -> None:
    first, copy = PROFILE.lines()
    assert (first.operation, first.kind, first.calls, first.shape) == ("first", "MatMul", 2, "[2, 3]")
    assert (first.total_milliseconds, first.share, first.mean_microseconds) == (0.08, 0.8, 40.0)
    assert (copy.operation, copy.share) == ("copy", 0.2)


def test_the_table_lists_them_and_adds_up_what_it_leaves_out() -> None:
    said = as_table(PROFILE, most_lines=1).splitlines()
    assert said[0] == "serving (onnx): 60.0 µs a call of 2 rows, 30.00 µs a row; 2 calls measured"
    assert said[2].split() == ["operation", "kind", "calls", "total", "ms", "share", "mean", "µs", "shape"]
    assert said[3].split() == ["first", "MatMul", "2", "0.080", "80.0%", "40.00", "[2,", "3]"]
    assert said[4].split() == ["(1", "others)", "0.020", "20.0%"]


def test_a_long_name_keeps_its_end() -> None:
    event = Event("scope/" * 20 + "MatMul", "MatMul", 0, 1)
    line = as_table(Profile("onnx", "serving", 1, 1, 1, [event])).splitlines()[3]
    assert line.startswith("…")
    assert "scope/MatMul  MatMul" in line


def test_no_events_make_an_empty_table() -> None:
    assert len(as_table(Profile("onnx", "serving", 1, 1, 1, [])).splitlines()) == 3


def test_json_has_every_operation() -> None:
    said = as_json(PROFILE)
    assert said["call_microseconds"] == 60.0
    assert [one["operation"] for one in said["operations"]] == ["first", "copy"]  # type: ignore[attr-defined]


def test_the_trace_has_a_process_a_profile_and_begins_at_zero() -> None:
    events = trace([PROFILE, PROFILE])["traceEvents"]
    assert isinstance(events, list)
    assert [one["args"]["name"] for one in events if one["ph"] == "M"] == ["serving (onnx, 2 rows)"] * 2
    complete = [one for one in events if one["ph"] == "X"]
    assert [(one["pid"], one["ts"], one["dur"], one["tid"]) for one in complete[:3]] == [
        (1, 0.0, 30.0, 1),
        (1, 30.0, 10.0, 1),
        (1, 50.0, 50.0, 2),
    ]
    assert {one["pid"] for one in complete} == {1, 2}
