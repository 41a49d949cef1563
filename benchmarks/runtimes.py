"""Each runtime beside its library's own fastest call, for 1 and 300 rows, and a call through the engine.

`alone` is the library's fastest call from Python on rows that lie ready in memory: LightGBM's and XGBoost's
are functions of their C API, ONNX Runtime's is the call below its checks of the inputs, the networks' are in
`network_runtimes.py`. The servable's answer and the engine's come from the same rows.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnxruntime
import skops.io
import xgboost
from catboost import CatBoost, CatBoostClassifier
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from benchmarks.network_runtimes import NETWORKS
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from benchmarks.runtime_subject import COLUMNS, Call, Subject
from headrace.base.tensors import Array
from headrace.model.servable import Servable
from headrace.runtimes import registry
from headrace.runtimes.tree_models import open_library
from headrace.serving.engine import Engine

ROWS = (1, 300)
FITTED_ROWS = 3000
ROUNDS_TREES, LEAVES, DEPTH = 100, 31, 6
WANTED = {1: 1.5, 300: 1.1}
NAMES = [f"column_{index}" for index in range(COLUMNS)]  # as a model has that was fitted on a data frame
TREES = ("lightgbm", "xgboost")
_SHARE = 1 / 30  # of a turn, for one side with one number of rows


def run(effort: Effort) -> None:
    """Measure all runtimes in turns.

    Args:
        effort: How much measuring is done.
    """
    subjects = {name: one for name, one in SUBJECTS.items() if _is_installed(name, one.needs)}
    with _sides(subjects) as sides:
        measured = interleaved(
            {name: partial(_microseconds, call, effort.seconds * _SHARE) for name, call in sides.items()},
            effort.rounds,
        )
    lines: list[tuple[str, ...]] = [("", "rows", "alone µs", "servable", "engine + µs")]
    for name in subjects:
        for rows in ROWS:
            alone, servable, engine = (
                measured[f"{name} {rows} {side}"] for side in ("alone", "servable", "engine")
            )
            share = ratios(servable, alone)
            above = [one - other for one, other in zip(engine, servable, strict=True)]
            lines.append((name, str(rows), f"{middle(alone):.1f}", f"{spread(share)} ×", spread(above, 1)))
    print_lines(lines)
    for name in TREES:
        for rows, wanted in WANTED.items():
            share = ratios(measured[f"{name} {rows} servable"], measured[f"{name} {rows} alone"])
            verdict(f"{name}, {rows} rows ≤ {wanted} × its own", middle(share) <= wanted, spread(share))


def _is_installed(name: str, needs: str) -> bool:
    there = not needs or importlib.util.find_spec(needs) is not None
    if not there:
        print(f"  {name}: left out, because {needs} is not installed")
    return there


@contextmanager
def _sides(subjects: dict[str, Subject]) -> Iterator[dict[str, Call]]:
    """Load every model once, and answer calls by name."""
    sides: dict[str, Call] = {}
    random = np.random.default_rng(1)
    every = {rows: random.normal(size=(rows, COLUMNS)) for rows in ROWS}
    with tempfile.TemporaryDirectory() as place:
        servables: dict[str, Servable] = {}
        for name, subject in subjects.items():
            version = Path(place) / name
            version.mkdir()
            subject.write(version)
            options = registry.RuntimeOptions(allow_code=subject.allow_code)
            servables[name] = registry.load(version, options)
        with Engine.in_thread(objects=servables) as engine:
            for name, subject in subjects.items():
                for rows, features in every.items():
                    inputs = subject.inputs(features)
                    sides[f"{name} {rows} alone"] = subject.alone(Path(place) / name, features)
                    sides[f"{name} {rows} servable"] = partial(servables[name].predict, inputs)
                    sides[f"{name} {rows} engine"] = partial(engine.predict_blocking, name, inputs)
            for call in sides.values():
                call()  # TensorFlow prepares itself for seconds
            yield sides


def _microseconds(call: Call, seconds: float) -> float:
    """The median time of a call."""
    waits, began = [], time.perf_counter()
    while not waits or waits[-1][1] - began < seconds:
        started = time.perf_counter()
        call()
        waits.append((started, time.perf_counter()))
    return middle([ended - started for started, ended in waits]) * 1e6


# --- models ---


def _data() -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    features = random.normal(size=(FITTED_ROWS, COLUMNS))
    return features, (features[:, 0] * features[:, 1] + random.normal(size=FITTED_ROWS) > 0).astype(int)


def _logistic() -> Any:
    return LogisticRegression().fit(*_data())


def _write_sklearn(version: Path) -> None:
    skops.io.dump(_logistic(), version / "model.skops")


def _sklearn_alone(version: Path, features: Array) -> Call:
    estimator = _logistic()
    return lambda: (estimator.predict(features), estimator.predict_proba(features))


def _write_onnx(version: Path) -> None:
    converted = to_onnx(
        _logistic(), np.zeros((1, COLUMNS)), options={"zipmap": False}, target_opset={"": 18, "ai.onnx.ml": 3}
    )
    (version / "model.onnx").write_bytes(converted.SerializeToString())


def _onnx_alone(version: Path, features: Array) -> Call:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(version / "model.onnx"), settings, providers=["CPUExecutionProvider"]
    )
    inner, names = session._sess, [output.name for output in session.get_outputs()]  # as the runtime calls it
    return partial(inner.run, names, {"X": features}, None)


def _write_lightgbm(version: Path, names: Sequence[str] = ()) -> None:
    options = {"objective": "binary", "num_leaves": LEAVES, "num_threads": 1, "verbose": -1}
    rows = lightgbm.Dataset(*_data(), feature_name=list(names) or "auto")
    lightgbm.train(options, rows, ROUNDS_TREES).save_model(version / "model.txt")


def _lightgbm_alone(version: Path, features: Array) -> Call:
    """The C API's call for one prepared row, or for many rows."""
    library, booster, handle = open_library("lightgbm", "lib_lightgbm"), ctypes.c_void_p(), ctypes.c_void_p()
    text = (version / "model.txt").read_bytes()
    library.LGBM_BoosterLoadModelFromString(text, ctypes.byref(ctypes.c_int()), ctypes.byref(booster))
    answer, count = np.empty(len(features)), ctypes.byref(ctypes.c_int64())
    data, out = ctypes.c_void_p(features.ctypes.data), ctypes.c_void_p(answer.ctypes.data)
    if len(features) == 1:
        library.LGBM_BoosterPredictForMatSingleRowFastInit(
            booster, 0, 0, -1, 1, COLUMNS, b"num_threads=1", ctypes.byref(handle)
        )
        call = partial(library.LGBM_BoosterPredictForMatSingleRowFast, handle, data, count, out)
    else:
        call = partial(
            library.LGBM_BoosterPredictForMat,
            *(booster, data, 1, len(features), COLUMNS, 1, 0, 0, -1, b"num_threads=1", count, out),
        )
    return partial(_keeping, call, features, answer)


def _write_xgboost(version: Path) -> None:
    options = {"objective": "binary:logistic", "max_depth": DEPTH, "nthread": 1}
    xgboost.train(options, xgboost.DMatrix(*_data()), ROUNDS_TREES).save_model(version / "model.ubj")


def _xgboost_alone(version: Path, features: Array) -> Call:
    library, booster = open_library("xgboost", "libxgboost"), ctypes.c_void_p()
    data = (version / "model.ubj").read_bytes()
    library.XGBoosterCreate(None, ctypes.c_uint64(0), ctypes.byref(booster))
    library.XGBoosterSetParam(booster, b"nthread", b"1")
    library.XGBoosterLoadModelFromBuffer(booster, data, ctypes.c_uint64(len(data)))
    described = {
        "data": [features.ctypes.data, True],
        "shape": features.shape,
        "typestr": "<f8",
        "version": 3,
    }
    settings = {"type": 0, "training": False, "iteration_begin": 0, "iteration_end": 0}
    settings |= {"missing": float("nan"), "strict_shape": False, "cache_id": 0}
    outputs = (ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64(), ctypes.POINTER(ctypes.c_float)())
    call = partial(
        library.XGBoosterPredictFromDense,
        *(booster, json.dumps(described).encode(), json.dumps(settings).encode(), None),
        *map(ctypes.byref, outputs),
    )
    return partial(_keeping, call, features)


def _keeping(call: Call, *_: Array) -> object:
    """Call; the arrays that the call has addresses of live as long as it."""
    return call()


_CODE = """
import numpy as np

class Model:
    inputs = [("features", "FP64", [30])]
    outputs = [("sum", "FP64", [])]

    def predict(self, inputs):
        return {"sum": inputs["features"].sum(axis=1)}
"""


def _write_catboost(version: Path) -> None:
    _catboost().save_model(str(version / "model.cbm"))


def _catboost() -> Any:
    model = CatBoostClassifier(
        iterations=ROUNDS_TREES, depth=DEPTH, thread_count=1, verbose=False, allow_writing_files=False
    )
    return model.fit(*_data())


def _catboost_alone(version: Path, features: Array) -> Call:
    model = CatBoost().load_model(str(version / "model.cbm"))  # faster than the classifier's own `predict`
    return partial(model.predict, features, prediction_type="Probability", thread_count=1)


def _write_python(version: Path) -> None:
    (version / "model.py").write_text(_CODE)


SUBJECTS = {
    "onnx": Subject(_write_onnx, _onnx_alone, lambda rows: {"X": rows}),
    "sklearn": Subject(_write_sklearn, _sklearn_alone),
    "lightgbm": Subject(_write_lightgbm, _lightgbm_alone),
    "lightgbm, columns": Subject(
        partial(_write_lightgbm, names=NAMES),
        _lightgbm_alone,
        lambda rows: {name: rows[:, index] for index, name in enumerate(NAMES)},
    ),
    "xgboost": Subject(_write_xgboost, _xgboost_alone),
    "catboost": Subject(_write_catboost, _catboost_alone),
    **NETWORKS,
    "python": Subject(
        _write_python, lambda version, rows: lambda: {"sum": rows.sum(axis=1)}, allow_code=True
    ),
}
