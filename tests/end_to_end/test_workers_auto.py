"""How many workers ``auto`` starts, and how many threads libraries start in workers and isolated models."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from tests.faults.control_groups import entering, group_with_processors
from tests.faults.still_serves import MODEL
from tests.faults.worker_processes import scrape, workers_of
from tests.model_directories import affine, write
from tests.running_server import RunningServer

PROCESSORS = sorted(os.sched_getaffinity(0))


def expect_workers(tmp_path: Path, prefix: tuple[str, ...], expected: int) -> None:
    """Start a server with ``auto``, and count its workers: none where one process serves."""
    models = tmp_path / "models"
    write(models, MODEL, 1, affine(1.0, 1.0))
    with RunningServer(models, "--workers", "auto", prefix=prefix) as server:
        if expected == 1:
            assert workers_of(server) == []
            assert "headrace_workers" not in scrape(server)
        else:
            assert len(workers_of(server)) == expected
            assert scrape(server)["headrace_workers"] == expected
        assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
        assert server.stop() == 0


@pytest.mark.parametrize("processors", [1.5, 2.5])
def test_the_quota_of_a_control_group_says_how_many(tmp_path: Path, processors: float) -> None:
    with group_with_processors(processors) as group:
        expected = min(len(PROCESSORS), math.floor(processors))
        expect_workers(tmp_path, entering(group), expected)


@pytest.mark.parametrize("processors", sorted({1, min(2, len(PROCESSORS))}))
def test_the_processors_that_may_be_used_say_how_many(tmp_path: Path, processors: int) -> None:
    chosen = ",".join(map(str, PROCESSORS[:processors]))
    expect_workers(tmp_path, ("taskset", "--cpu-list", chosen), processors)


THREADS = """
import threadpoolctl


class Model:
    inputs = [("x", "INT64", [])]
    outputs = [("y", "INT64", [])]

    def predict(self, inputs):
        (of_numpy,) = [one for one in threadpoolctl.threadpool_info() if "numpy" in one["filepath"]]
        return {"y": inputs["x"] * 0 + of_numpy["num_threads"]}
"""


@pytest.mark.parametrize(
    ("options", "settings", "expected"),
    [
        (("--workers", "2"), "", max(1, len(PROCESSORS) // 2)),
        ((), "isolate = true\n[batching]\nthreads_per_instance = 1\n", 1),
        ((), "", len(PROCESSORS)),
    ],
    ids=["two workers", "isolated", "one process"],
)
def test_linear_algebra_starts_as_many_threads_as_its_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], settings: str, expected: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    models = tmp_path / "models"
    write(models, MODEL, 1, THREADS)
    (models / MODEL / "headrace.toml").write_text(settings)
    with RunningServer(models, "--allow-code", *options) as server:
        answer = server.post(f"/v1/models/{MODEL}:predict", {"instances": [1]})
        assert answer == (200, {"predictions": [expected]})
        assert server.stop() == 0
