"""Ten trainers and one server on one machine: each model stays fresh, and nobody who asks is turned away."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.live_training import HEADRACE, Callers, Feed, LiveTrainer, metric, wait_for_version
from tests.running_server import RunningServer

MODELS = tuple(f"ctr{number}" for number in range(10))
MAX_AGE_SECONDS = 60.0
"""Versions come each two seconds; ten trainers that start at once share the processor for half a minute."""

PACE = 20_000
"""Bytes a second: some 400 rows."""


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """More rows than are learnt while the test runs, in batches as a live source has."""
    file = tmp_path_factory.mktemp("stream") / "rows.arrows"
    words = ["stream", "generate", "--shape", "small", "--rows", "200000", "--batch-rows", "100"]
    subprocess.run([*HEADRACE, *words, "--drift", "1", "--out", str(file)], check=True, timeout=60)
    return file.read_bytes()


@pytest.mark.rest
@pytest.mark.timeout(400)
def test_ten_models_stay_fresh_beside_one_server(
    stream: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each model is replaced at least twice while it is asked over REST and gRPC; none is stale."""
    with ExitStack() as stack:
        trainers, feeds = {}, []
        for name in MODELS:
            directory = tmp_path / name
            directory.mkdir()
            (directory / "headrace.toml").write_text(f"[versions]\nmax_age_seconds = {MAX_AGE_SECONDS}\n")
            options = ("--model", "fm", "--every-seconds", 2, "--keep", 2, "--seed", len(trainers))
            trainers[name] = stack.enter_context(LiveTrainer(directory, *options))
            feeds.append(Feed(trainers[name], stream, PACE))
            feeds[-1].start()
            stack.callback(feeds[-1].join, 30)
            stack.callback(feeds[-1].ended.set)
        for name, trainer in trainers.items():
            wait_for_version(tmp_path / name, trainer, 200)
        with RunningServer(tmp_path) as server, Callers(server, MODELS) as callers:
            server.wait_for(
                lambda: all(callers.seen(name) >= 3 for name in MODELS), "each to be replaced twice", 120
            )
            stale = {name: metric(server, "headrace_model_stale", name)[""] for name in MODELS}
            assert stale == dict.fromkeys(MODELS, 0.0)
            for feed in feeds:
                feed.ended.set()
            assert {name: trainer.end() for name, trainer in trainers.items()} == dict.fromkeys(MODELS, 143)
            answers, server_bytes = callers.answers, server.rss_bytes()
        assert callers.failed == []
    peaks = [trainer.peak_bytes / 2**20 for trainer in trainers.values()]
    versions = [len(trainer.summary["versions"]) for trainer in trainers.values()]
    with capsys.disabled():
        print(
            f"\n[{answers} answers; versions {min(versions)} to {max(versions)}; MiB a trainer "
            f"{min(peaks):.0f} to {max(peaks):.0f}, the server {server_bytes / 2**20:.0f}] ",
            end="",
        )
    assert max(peaks) < 400, "a trainer of a small model takes what Python, NumPy, Arrow and Numba do"
