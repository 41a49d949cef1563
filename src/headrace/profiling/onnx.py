"""Profiles of ONNX models by ONNX Runtime's profiler: the operations left after its optimisations."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime

from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.profiling.calls import WARM_UP_CALLS, inputs_for, median_microseconds
from headrace.profiling.report import Event, Profile
from headrace.runtimes import onnx
from headrace.runtimes.options import RuntimeOptions

_KERNEL = "_kernel_time"


def profile_serving(file: Path, options: RuntimeOptions, rows: int, calls: int) -> Profile:
    """Profile a model as it is served.

    Args:
        file: The ONNX file.
        options: The settings that it is served with.
        rows: Number of rows per call, if the model takes any number.
        calls: Number of measured calls.

    Raises:
        LoadError: The model cannot be loaded.
        ModelError: The model fails on generated inputs.
    """
    servable = onnx.load(file, options)
    inputs = inputs_for(servable, file.parent, rows)
    microseconds = median_microseconds(lambda: servable.predict(inputs), calls)
    names = list(servable.signatures[DEFAULT_SIGNATURE].output_names)
    servable.close()
    with tempfile.TemporaryDirectory(prefix="headrace-profile-") as folder:
        settings = onnx.session_options(options)
        settings.enable_profiling = True
        settings.profile_file_prefix = f"{folder}/profile"
        session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        for _ in range(WARM_UP_CALLS + calls):
            session.run(names, dict(inputs))
        recorded = json.loads(Path(session.end_profiling()).read_bytes())
    measured = len(next(iter(inputs.values())))
    return Profile("onnx", "serving", measured, calls, microseconds, events_of(recorded, WARM_UP_CALLS))


def events_of(recorded: list[dict[str, Any]], skipped_calls: int) -> list[Event]:
    """Return the operations in ONNX Runtime's recording.

    Args:
        recorded: ONNX Runtime's trace events.
        skipped_calls: Number of calls at the start that do not count.
    """
    runs = sorted(one["ts"] for one in recorded if one.get("name") == "model_run")
    since = runs[skipped_calls] if skipped_calls < len(runs) else 0
    events = []
    for one in recorded:
        if one.get("cat") != "Node" or not one["name"].endswith(_KERNEL) or one["ts"] < since:
            continue
        arguments = one["args"]
        kind = str(arguments.get("op_name", ""))
        name = one["name"].removesuffix(_KERNEL) or kind
        shape = _shape(arguments.get("output_type_shape", []))
        events.append(Event(name, kind, float(one["ts"]), float(one["dur"]), shape, int(one["tid"])))
    return events


def _shape(outputs: list[dict[str, list[int]]]) -> str:
    return ", ".join(str(sizes) for output in outputs for sizes in output.values())
