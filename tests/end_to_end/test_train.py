"""``headrace stream generate | headrace train``, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.training.running.checkpoint import only_run
from tests.model_directories import affine, write
from tests.waiting import until

HEADRACE = [sys.executable, "-m", "headrace"]
SECONDS = 110
KINDS = ["lr", "fm", "fwfm", "ffm", "deepfm", "mdn"]


def generated(file: Path, rows: int, *options: str) -> Path:
    words = [
        *HEADRACE,
        "stream",
        "generate",
        "--rows",
        str(rows),
        "--seed",
        "1",
        "--shape",
        "small",
        *options,
    ]
    with file.open("wb") as out:
        subprocess.run(words, stdout=out, check=True)
    return file


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 rows of the small shape."""
    return generated(tmp_path_factory.mktemp("rows") / "rows.arrows", 20_000)


def train(*options: object, code: int = 0, stdin: bytes | None = None) -> tuple[list[dict[str, Any]], str]:
    """The lines of a run, the last of them its summary, and what it said to people."""
    done = subprocess.run(
        [*HEADRACE, "train", *map(str, options)],
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


@pytest.fixture(scope="module")
def undisturbed(rows: Path) -> dict[str, Any]:
    """The summary of a run over all rows that nothing happens to."""
    return train(rows, "--model", "lr")[0][-1]


@pytest.mark.rest
@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_learns_and_publishes(kind: str, tmp_path: Path) -> None:
    versions = tmp_path / "ctr"
    generate = [*HEADRACE, "stream", "generate", "--rows", "20000", "--seed", "1", "--shape", "small"]
    factors = ["--factors", "4"] if kind in ("fm", "fwfm", "ffm") else []  # kernels of other tests
    learn = [
        *HEADRACE,
        "train",
        "--model",
        kind,
        *factors,
        "--publish",
        str(versions),
        "--every-rows",
        "5000",
    ]
    with subprocess.Popen(generate, stdout=subprocess.PIPE) as source:
        done = subprocess.run(learn, stdin=source.stdout, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["rows"] == 20_000
    assert summary["versions"] == [1, 2, 3, 4]
    assert sorted(int(path.name) for path in versions.iterdir()) == [1, 2, 3, 4]
    assert 0.5 < summary["auc"] < 1.0
    assert summary["optimal_logloss"] < summary["logloss"]
    assert summary["normalized_entropy"] < 1.0  # a network has learnt in 20 steps by then
    assert summary["seconds"] > 0


@pytest.mark.rest
def test_the_logloss_approaches_the_best_possible_one(tmp_path: Path) -> None:
    file = generated(tmp_path / "rows", 400_000)
    lines, _ = train(file, "--model", "fm", "--window-rows", 50_000)
    first, last = lines[0], lines[-2]
    assert last["window"] == 8
    excess = [line["logloss"] - line["optimal_logloss"] for line in (first, last)]
    assert excess[1] < 0.6 * excess[0]
    assert excess[1] < 0.03


@pytest.mark.rest
def test_windows_are_lines_of_json_and_may_be_split_by_a_field(rows: Path) -> None:
    lines, errors = train(rows, "--model", "lr", "--window-rows", 8000, "--slice", "c3", "--rows", 17_000)
    assert [line["rows"] for line in lines] == [8000, 8000, 1000, 17_000]
    assert sum(score["rows"] for score in lines[0]["slices"]["c3"].values()) == 8000
    assert lines[-1]["stopped"] == "rows"
    assert errors == ""


@pytest.mark.rest
def test_a_cut_stream_keeps_what_was_learnt(rows: Path, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    options = ("-", "--model", "lr", "--publish", tmp_path / "ctr", "--checkpoint", tmp_path / "saved")
    lines, errors = train(*options, stdin=rows.read_bytes()[:600_000], code=1)
    summary = lines[-1]
    assert summary["stopped"] == "error"
    assert 0 < summary["rows"] < 20_000
    assert f"stream, row {summary['rows']}" in errors
    assert summary["versions"] == [1]
    again, _ = train(rows, *options[1:], "--resume")
    for name in ("rows", "logloss", "auc", "calibration"):
        assert again[-1][name] == undisturbed[name]


def test_input_that_is_not_a_stream_is_refused_before_training() -> None:
    done = subprocess.run([*HEADRACE, "train"], input=b"label,c1\n1,a\n", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"headrace stream encode" in done.stderr


@pytest.mark.rest
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_publishes_before_it_ends_the_run(
    number: signal.Signals, code: int, rows: Path, tmp_path: Path
) -> None:
    content, versions = rows.read_bytes(), tmp_path / "ctr"
    options = [
        "--model",
        "lr",
        "--publish",
        versions,
        "--every-rows",
        2000,
        "--checkpoint",
        tmp_path / "saved",
    ]
    words = [*HEADRACE, "train", *map(str, options)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdin is not None
        run.stdin.write(content[:600_000])
        run.stdin.flush()
        until(lambda: versions.is_dir() and any(path.name.isdigit() for path in versions.iterdir()))
        run.send_signal(number)
        assert run.wait(SECONDS) == code
        assert run.stdout is not None
        summary = json.loads(run.stdout.read().splitlines()[-1])
    assert summary["stopped"] in ("interrupt", "terminate")
    assert summary["versions"]
    assert any(path.name.isdigit() for path in (tmp_path / "saved").iterdir())


@pytest.mark.rest
def test_labels_that_come_late_are_learnt_late(rows: Path, undisturbed: dict[str, Any]) -> None:
    late, _ = train(rows, "--model", "lr", "--label-delay-seconds", 5)
    assert late[-1]["rows"] == 20_000
    assert late[-1]["pending_rows"] == 0
    assert late[-1]["logloss"] > undisturbed["logloss"]


@pytest.mark.rest
def test_a_run_can_be_drawn(rows: Path, tmp_path: Path) -> None:
    train(rows, "--model", "lr", "--window-rows", 2000, "--plot", tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.rest
def test_a_search_prints_a_table_and_settings_that_train_takes(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "search.toml").write_text(
        'base = {kind = "lr"}\ngrid = {"linear.learning_rate" = [0.0001, 0.1]}\ngates = {max_size_mb = 9}\n'
    )
    done = subprocess.run(
        [*HEADRACE, "train", str(rows), "--search", str(tmp_path / "search.toml")],
        capture_output=True,
        check=True,
    )
    text = done.stdout.decode()
    assert "linear.learning_rate=0.0001" in text
    assert "learning_rate = 0.1" in text
    (tmp_path / "best.toml").write_text(text)
    lines, _ = train(rows, "--config", tmp_path / "best.toml")
    assert lines[-1]["rows"] == 20_000


@pytest.mark.rest
def test_an_interrupted_run_goes_on_with_the_rows_that_follow(tmp_path: Path) -> None:
    first = generated(tmp_path / "first", 8192)
    rest = generated(tmp_path / "rest", 8192, "--from-row", "8192")
    whole = generated(tmp_path / "whole", 16_384)
    model = ("--model", "fm", "--factors", 4)
    saved = (*model, "--checkpoint", tmp_path / "saved")
    train(first, *saved)
    found, _ = train(rest, *saved, "--resume", "--continued")
    expected, _ = train(whole, *model)
    for name in ("rows", "logloss", "auc", "optimal_logloss"):
        assert found[-1][name] == expected[-1][name]


@pytest.mark.rest
def test_a_checkpoint_of_the_default_before_goes_on_with_adagrad(rows: Path, tmp_path: Path) -> None:
    model, saved = ("--model", "fm"), ("--checkpoint", tmp_path / "saved")
    train(rows, *model, *saved, "--optimizer", "adagrad", "--rows", 2000)
    found, _ = train(rows, *model, *saved, "--resume", "--rows", 4000)
    expected, _ = train(rows, *model, "--optimizer", "adagrad", "--rows", 4000)
    assert found[-1]["logloss"] == expected[-1]["logloss"]


@pytest.mark.rest
def test_a_checkpoint_is_not_overwritten_by_a_run_that_does_not_resume(rows: Path, tmp_path: Path) -> None:
    options = (rows, "--model", "lr", "--rows", 2000, "--checkpoint", tmp_path)
    train(*options)
    _, errors = train(*options, code=2)
    assert "resume from them with --resume" in errors


@pytest.mark.rest
def test_a_second_run_is_kept_from_the_checkpoints_of_the_first(rows: Path, tmp_path: Path) -> None:
    """A supervisor starts another while the first one hangs: what that saves later would be older."""
    with only_run(tmp_path):
        _, errors = train(rows, "--model", "lr", "--checkpoint", tmp_path, "--resume", code=1)
    assert "another run has its checkpoints in" in errors
    train(rows, "--model", "lr", "--rows", 2000, "--checkpoint", tmp_path, "--resume")


@pytest.mark.rest
def test_a_reader_of_the_log_that_leaves_does_not_end_the_run(rows: Path, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = ["train", str(rows), "--model", "lr", "--window-rows", "1000", "--publish", str(tmp_path / "ctr")]
    done = subprocess.run([*HEADRACE, *words], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "ctr" / "1").is_dir()


@pytest.mark.rest
def test_another_model_is_not_published_over_unless_that_is_said(rows: Path, tmp_path: Path) -> None:
    write(tmp_path / "models", "half", 1, affine(1.0, 0.0))
    half = tmp_path / "models/half"
    options = (rows, "--model", "lr", "--rows", 100, "--publish")
    _, errors = train(*options, half, code=2)
    assert "version 1" in errors
    assert "another model: it is not a click model, but holds model.onnx" in errors
    _, errors = train(*options, half.parent, code=2)
    assert f"--publish {half.parent / 'NAME'}" in errors
    assert [path.name for path in half.parent.iterdir()] == ["half"]
    assert [path.name for path in half.iterdir()] == ["1"]
    lines, _ = train(*options, half, "--replace")
    assert lines[-1]["versions"] == [2]
    assert train(*options, half)[0][-1]["versions"] == [3]
