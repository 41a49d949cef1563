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
    subprocess.run([*HEADRACE, *words, "--drift", "1", "--out", str(file)], check=True)
    return file.read_bytes()


@pytest.mark.rest
@pytest.mark.exact
def test_ten_models_stay_fresh_beside_one_server(stream: bytes, tmp_path: Path) -> None:
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
            wait_for_version(tmp_path / name, trainer)
        with RunningServer(tmp_path) as server, Callers(server, MODELS) as callers:
            server.wait_for(
                lambda: all(callers.seen(name) >= 3 for name in MODELS), "each to be replaced twice"
            )
            server.wait_for(
                lambda: not any(metric(server, "headrace_model_stale", name)[""] for name in MODELS),
                "each to be fresh",
            )
            for feed in feeds:
                feed.ended.set()
            for feed in feeds:  # before a trainer that ends closes the pipe that is written to
                feed.join(120)
            assert {name: trainer.end() for name, trainer in trainers.items()} == dict.fromkeys(MODELS, 143)
        assert callers.failed == []
        assert callers.answers
    for trainer in trainers.values():
        assert trainer.summary["versions"]
