"""``headrace.serve`` in processes of its own: each framework's objects, interrupts, the end of a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import numpy as np, pandas as pd
import headrace
random = np.random.default_rng(0)
frame = pd.DataFrame({"a": random.normal(size=200), "b": random.normal(size=200)})
labels = (frame.a * frame.b > 0).astype(int)
"""
CHECK = """
import asyncio
async def cell():
    with headrace.serve(model, name="churn") as server:
        return server.predict(frame)
answer = asyncio.run(cell())
"""
OBJECTS = {
    "lightgbm": """
import lightgbm
model = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(frame, labels), 5)
expected, output = model.predict(frame), "prediction"
""",
    "lightgbm's estimator": """
import lightgbm
model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(frame, labels)
expected, output = model.predict_proba(frame)[:, 1], "prediction"
""",
    "xgboost": """
import xgboost
model = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(frame, labels), 5)
expected, output = model.inplace_predict(frame), "prediction"
""",
    "xgboost's estimator": """
import xgboost
model = xgboost.XGBClassifier(n_estimators=5).fit(frame, labels)
expected, output = model.predict_proba(frame)[:, 1], "prediction"
""",
    "catboost": """
import catboost
model = catboost.CatBoostClassifier(iterations=5, verbose=False, allow_writing_files=False).fit(frame, labels)
expected, output = model.predict_proba(frame), "probabilities"
""",
    "onnx": """
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression
regression = LinearRegression().fit(frame.to_numpy(), labels)
model = to_onnx(regression, frame.to_numpy()[:1].astype(np.float32), target_opset=18)
expected, output = regression.predict(frame.to_numpy())[:, None], "variable"
frame = {"X": frame.to_numpy().astype(np.float32)}
""",
    "keras": """
import keras
doubled = keras.layers.Lambda(lambda x: x * 2)
model = keras.Sequential([keras.Input((2,), name="x"), doubled, keras.layers.Dense(1)])
frame = {"x": frame.to_numpy().astype(np.float32)}
expected, output = model.predict(frame["x"], verbose=0), "output_0"
""",
}
FUNCTION = """
def twice(x: float) -> float:
    return 2 * x

server = headrace.serve(twice)
print(server.url, flush=True)
"""


def run(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TMPDIR": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.rest
@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_of_a_framework_answers_as_in_the_framework(kind: str, tmp_path: Path) -> None:
    compared = "np.testing.assert_allclose(answer[output], expected, rtol=1e-4, atol=1e-5)\nprint('equal')"
    ran = run(START + OBJECTS[kind] + CHECK + compared, tmp_path)
    assert ran.stdout.endswith("equal\n"), ran.stderr
    assert not list(tmp_path.glob("headrace-serve-*"))


def test_the_end_of_the_process_stops_the_server(tmp_path: Path) -> None:
    ran = run("import headrace\n" + FUNCTION, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


def test_the_end_of_the_process_does_not_wait_where_no_thread_can_start(tmp_path: Path) -> None:
    """Python 3.12 and later start no threads then."""
    no_threads = """
import _thread, atexit
def refuse(*_):
    raise RuntimeError("can't create new thread at interpreter shutdown")
atexit.register(setattr, _thread, "start_new_thread", refuse)
"""
    ran = run("import headrace\n" + FUNCTION + no_threads, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_the_waiting_and_the_server(tmp_path: Path) -> None:
    interrupted = """
import os, signal, sys, threading
main = threading.get_ident()
def waits(frame):
    called = frame.f_code.co_filename.endswith("threading.py")
    while frame and not (frame.f_code.co_name == "wait" and "local_server" in frame.f_code.co_filename):
        frame = frame.f_back
    return called and frame is not None
def interrupt():
    while not waits(sys._current_frames()[main]):
        pass
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
server.wait()
print(server)
"""
    ran = run("import headrace\n" + FUNCTION + interrupted, tmp_path)
    assert ran.stdout.endswith("\nheadrace server of twice, stopped\n"), ran.stderr
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


def test_a_forked_child_leaves_the_server_to_its_parent(tmp_path: Path) -> None:
    forked = """
import os, sys
child = os.fork()
if not child:
    try:
        server.predict({"x": [1.0]})
    except headrace.HeadraceError as error:
        print("refused:", error, flush=True)
    server.stop()
    sys.exit(0)
os.waitpid(child, 0)
print(server.predict({"x": [1.0]})["output"].tolist())
"""
    ran = run("import headrace\n" + FUNCTION + forked, tmp_path)
    assert "refused: the engine was started before this process was forked" in ran.stdout, ran.stderr
    assert ran.stdout.endswith("[2.0]\n"), ran.stderr
