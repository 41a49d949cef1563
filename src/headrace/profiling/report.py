"""Output of profiles: operations as a table or JSON, events as a trace for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.base.terminal import table


def trace(profiles: Sequence[Profile]) -> dict[str, object]:
    """Return the events of several profiles in the Chrome trace-event format, each profile as a process.

    Args:
        profiles: The profiles, such as those of serving and of training.
    """
    events: list[dict[str, object]] = []
    for process, profile in enumerate(profiles, 1):
        name = f"{profile.activity} ({profile.runtime}, {profile.rows} rows)"
        events.append({"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}})
        first = min((event.start_microseconds for event in profile.events), default=0.0)
        events += [
            {
                "name": event.name,
                "cat": event.kind,
                "ph": "X",
                "ts": event.start_microseconds - first,
                "dur": event.microseconds,
                "pid": process,
                "tid": event.thread,
                "args": {"kind": event.kind, "shape": event.shape},
            }
            for event in profile.events
        ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write_trace(file: Path, profiles: Sequence[Profile]) -> None:
    """Write a trace file.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        file.write_text(json.dumps(trace(profiles)), "utf-8")
    except OSError as error:
        raise ConfigError(f"--trace: {file} cannot be written: {error.strerror}") from error


_MOST_NAME = 48


@dataclass(frozen=True, slots=True)
class Event:
    """One run of one operation.

    Attributes:
        name: The operation's name in the model.
        kind: The kind of operation, such as ``MatMul``.
        start_microseconds: Start time in µs, relative to an arbitrary origin.
        microseconds: Duration in µs.
        shape: Shape of the output, such as ``[32, 128]``; or "".
        thread: Number of the thread it ran in.
    """

    name: str
    kind: str
    start_microseconds: float
    microseconds: float
    shape: str = ""
    thread: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One operation, summed over all calls.

    Attributes:
        operation: The operation's name in the model.
        kind: The kind of operation.
        calls: Number of runs.
        total_milliseconds: Total duration in ms.
        share: Share of the total duration of all operations.
        mean_microseconds: Mean duration of a run in µs.
        shape: Output shape of the last run.
    """

    operation: str
    kind: str
    calls: int
    total_milliseconds: float
    share: float
    mean_microseconds: float
    shape: str


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of one model.

    Attributes:
        runtime: The runtime that ran the model.
        activity: ``serving`` or ``training``.
        rows: Number of rows per call.
        calls: Number of measured calls.
        call_microseconds: Median duration of a call without profiling, in µs.
        events: The runs of all operations.
    """

    runtime: str
    activity: str
    rows: int
    calls: int
    call_microseconds: float
    events: Sequence[Event]

    def lines(self) -> list[Line]:
        """Return the operations, the longest first."""
        found: dict[tuple[str, str], list[Event]] = {}
        for event in self.events:
            found.setdefault((event.name, event.kind), []).append(event)
        whole = sum(event.microseconds for event in self.events) or 1.0
        lines = []
        for (name, kind), events in found.items():
            total = sum(event.microseconds for event in events)
            lines.append(
                Line(
                    operation=name,
                    kind=kind,
                    calls=len(events),
                    total_milliseconds=total / 1e3,
                    share=total / whole,
                    mean_microseconds=total / len(events),
                    shape=events[-1].shape,
                )
            )
        return sorted(lines, key=lambda line: -line.total_milliseconds)


def as_json(profile: Profile) -> dict[str, object]:
    """Return a profile as an object for JSON, without the single events."""
    return {
        "runtime": profile.runtime,
        "activity": profile.activity,
        "rows": profile.rows,
        "calls": profile.calls,
        "call_microseconds": round(profile.call_microseconds, 3),
        "operations": [asdict(line) for line in profile.lines()],
    }


def as_table(profile: Profile, most_lines: int = 40) -> str:
    """Return a profile as a table.

    Args:
        profile: The profile.
        most_lines: Maximum number of operations listed; the others are summed up.
    """
    per_row = profile.call_microseconds / max(1, profile.rows)
    head = (
        f"{profile.activity} ({profile.runtime}): {profile.call_microseconds:.1f} µs a call of "
        f"{profile.rows} rows, {per_row:.2f} µs a row; {profile.calls} calls measured"
    )
    rows: list[tuple[str, ...]] = [("operation", "kind", "calls", "total ms", "share", "mean µs", "shape")]
    lines = profile.lines()
    rows += [_cells(line) for line in lines[:most_lines]]
    rest = lines[most_lines:]
    if rest:
        total, share = sum(line.total_milliseconds for line in rest), sum(line.share for line in rest)
        rows.append((f"({len(rest)} others)", "", "", f"{total:.3f}", f"{share:.1%}", "", ""))
    return f"{head}\n\n{table(rows, right=(2, 3, 4, 5))}"


def _cells(line: Line) -> tuple[str, ...]:
    name = line.operation
    if len(name) > _MOST_NAME:  # keep the end, which is more specific than the scopes at the beginning
        name = f"…{name[1 - _MOST_NAME :]}"
    return (
        name,
        line.kind,
        str(line.calls),
        f"{line.total_milliseconds:.3f}",
        f"{line.share:.1%}",
        f"{line.mean_microseconds:.2f}",
        line.shape,
    )
