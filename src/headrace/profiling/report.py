"""What a profile holds, added up by operation: as a table for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from headrace.terminal import table

_MOST_NAME = 48


@dataclass(frozen=True, slots=True)
class Event:
    """One operation that ran once.

    Attributes:
        name: The operation's name in the model.
        kind: What it does, such as ``MatMul``.
        start_microseconds: When it started, since some moment.
        microseconds: How long it took.
        shape: What it gave, such as ``[32, 128]``; or "".
        thread: Which thread it ran in.
    """

    name: str
    kind: str
    start_microseconds: float
    microseconds: float
    shape: str = ""
    thread: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One operation, over all calls.

    Attributes:
        operation: Its name in the model.
        kind: What it does.
        calls: How often it ran.
        total_milliseconds: How long it took, all in all.
        share: Which part of all operations' time that is.
        mean_microseconds: How long it took each time.
        shape: What it gave, the last time.
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
    """What was measured of one model.

    Attributes:
        runtime: What ran it.
        activity: ``serving`` or ``training``.
        rows: How many rows a call had.
        calls: How many calls were measured.
        call_microseconds: How long a call takes when it is not measured from inside: the median.
        events: What ran.
    """

    runtime: str
    activity: str
    rows: int
    calls: int
    call_microseconds: float
    events: Sequence[Event]

    def lines(self) -> list[Line]:
        """Each operation, the longest first."""
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
    """A profile as JSON can hold it, without the single events."""
    return {
        "runtime": profile.runtime,
        "activity": profile.activity,
        "rows": profile.rows,
        "calls": profile.calls,
        "call_microseconds": round(profile.call_microseconds, 3),
        "operations": [asdict(line) for line in profile.lines()],
    }


def as_table(profile: Profile, most_lines: int = 40) -> str:
    """A profile as a table.

    Args:
        profile: The profile.
        most_lines: How many operations are listed; the others are added up.
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
    if len(name) > _MOST_NAME:  # the end of a name tells more than the scopes that it begins with
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
