"""``headrace train`` is killed wherever it may be; its disk is full; a server names its old versions."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from headrace.ctr.files.model_files import arrays_of, read_model
from headrace.training.running.checkpoint import load_checkpoint
from headrace.versions.layout import version_directories
from headrace.versions.manifest import check_manifest
from tests.faults.pausing import kill_paused, pausing

ROWS = 40_000
SAME = ("rows", "logloss", "auc", "calibration", "normalized_entropy", "click_rate", "optimal_logloss")

pytestmark = pytest.mark.rest


def headrace(*words: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "headrace", *words], **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream with drift, in a file."""
    file = tmp_path_factory.mktemp("stream") / "rows"
    with file.open("wb") as stream:
        process = headrace("stream", "generate", "--rows", str(ROWS), "--seed", "7", stdout=stream)
        assert process.wait() == 0
    return file


def training(rows: Path, directory: Path) -> list[str]:
    return [
        *("train", str(rows), "--model", "fm", "--window-rows", "10000", "--patch"),
        *("--publish", str(directory / "models/ctr"), "--every-rows", "8000", "--keep", "2"),
        *("--checkpoint", str(directory / "checkpoints"), "--checkpoint-every-rows", "6000", "--resume"),
    ]


def train(rows: Path, directory: Path, **options: object) -> subprocess.Popen[bytes]:
    return headrace(*training(rows, directory), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def finish(process: subprocess.Popen[bytes]) -> tuple[int, dict[str, object], str]:
    """The exit code, the last line, and what was told to people."""
    output, errors = process.communicate()
    lines = output.decode().splitlines()
    return process.returncode, json.loads(lines[-1]) if lines else {}, errors.decode()


def newest(directory: Path) -> dict[str, bytes]:
    versions = version_directories(directory / "models/ctr")
    weights = read_model(versions[max(versions)])[2]
    return {name: array.tobytes() for name, array in arrays_of(weights).items()}


def everything_is_whole(directory: Path) -> None:
    models = directory / "models/ctr"
    for path in version_directories(models).values() if models.is_dir() else ():
        assert check_manifest(path) is not None
        read_model(path)
    loaded = load_checkpoint(directory / "checkpoints")
    assert loaded is None or not loaded.skipped


@pytest.fixture(scope="module")
def undisturbed(
    rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, object], dict[str, bytes]]:
    """The last line and the weights of a run that nobody disturbed."""
    directory = tmp_path_factory.mktemp("undisturbed")
    code, last, _ = finish(train(rows, directory))
    assert code == 0
    return last, newest(directory)


def test_killed_in_training_checkpointing_and_publishing_it_ends_as_if_it_had_not_been(
    rows: Path, tmp_path: Path, undisturbed: tuple[dict[str, object], dict[str, bytes]]
) -> None:
    checkpoints, models = tmp_path / "checkpoints", tmp_path / "models/ctr"
    points = [
        ("filled", 1, checkpoints),  # the first one: nothing to go on from
        ("whole", 1, models),
        ("whole", 2, checkpoints),
        ("learnt", 4, tmp_path),  # between two
        ("filled", 2, models),
    ]
    for number, (moment, times, where) in enumerate(points):
        marker = tmp_path / f"paused-{number}"
        kill_paused([*pausing(marker, moment, times, where), "headrace", *training(rows, tmp_path)], marker)
        everything_is_whole(tmp_path)
    code, last, _ = finish(train(rows, tmp_path))
    assert code == 0
    expected, weights = undisturbed
    assert {key: last[key] for key in SAME} == {key: expected[key] for key in SAME}
    assert newest(tmp_path) == weights


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_versions_labelled_in_a_servers_settings_are_not_deleted(rows: Path, tmp_path: Path) -> None:
    server = tmp_path / "server.toml"
    words = ("train", str(rows), "--model", "lr", "--publish", str(tmp_path / "models/ctr"))
    words += ("--every-rows", "10000", "--keep", "1", "--server-config", str(server))
    server.write_text("[models.other.versions]\nlabels = { stable = 1 }\n")
    code, last, errors = finish(headrace(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    assert (code, last) == (2, {})
    assert "does not mention the model in" in errors
    assert not (tmp_path / "models").exists(), "told before anything is learnt"
    server.write_text("[models.ctr.versions]\nlabels = { stable = 1, canary = 2 }\n")
    code, _, errors = finish(headrace(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    assert code == 0, errors
    left = list(version_directories(tmp_path / "models/ctr"))
    assert left[:2] == [1, 2]
    assert len(left) == 3


def test_when_nothing_can_be_written_learning_goes_on_and_the_end_says_so(
    rows: Path, tmp_path: Path, undisturbed: tuple[dict[str, object], dict[str, bytes]]
) -> None:
    """A limit on the size of files stands for the full disk: the error comes from the same calls."""
    code, last, errors = finish(train(rows, tmp_path, preexec_fn=limit_files))
    assert code == 1
    assert {key: last[key] for key in SAME} == {key: undisturbed[0][key] for key in SAME}
    assert "no version can be published" in errors
    assert "File too large" in errors
    assert not version_directories(tmp_path / "models/ctr")
    assert not list((tmp_path / "models/ctr").iterdir())
    code, again, _ = finish(train(rows, tmp_path))
    assert (code, again["logloss"]) == (0, undisturbed[0]["logloss"])
    assert newest(tmp_path) == undisturbed[1]


def test_a_search_that_fails_says_which_configuration_and_what_was_found_out(
    rows: Path, tmp_path: Path
) -> None:
    """A network that is too wide for the memory ended in a traceback, and the others' scores were lost."""
    small, large = (
        '[[configurations]]\nkind = "lr"\n',
        "[[configurations]]\nhidden = [65536]\nbatch_rows = 65536\n",
    )
    file = tmp_path / "search.toml"
    file.write_text(small + large)
    process = headrace(
        *("train", str(rows), "--search", str(file)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_AS, (5 * 2**30, 5 * 2**30)),
    )
    output, errors = process.communicate()
    assert process.returncode == 1
    *logged, last = errors.decode().splitlines()
    assert last.startswith(
        "headrace: search: hidden=[65536] batch_rows=65536: MemoryError: Unable to allocate"
    )
    assert "Traceback (most recent call last):" in logged  # for whoever mends it
    assert "out: failed" in output.decode()
    assert 'kind = "lr"' in output.decode()


def test_a_search_whose_results_cannot_be_written_says_so(rows: Path, tmp_path: Path) -> None:
    file = tmp_path / "search.toml"
    file.write_text('[[configurations]]\nkind = "lr"\n')
    with open("/dev/full", "wb") as full:
        process = headrace("train", str(rows), "--search", str(file), stdout=full, stderr=subprocess.PIPE)
        _, errors = process.communicate()
    assert process.returncode == 1
    assert errors.decode() == "headrace: standard output cannot be written: No space left on device\n"
