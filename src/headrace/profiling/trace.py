"""A profile's events in the Chrome trace-event format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.profiling.report import Profile


def trace(profiles: Sequence[Profile]) -> dict[str, object]:
    """Return the events of several profiles as one trace, with each profile as a process.

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
