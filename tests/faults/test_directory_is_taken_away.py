"""The served directory is unmounted, replaced, or may not be read: what is loaded goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.still_serves import MODEL, does_it_still_serve
from tests.faults.test_bad_versions import answer, state
from tests.model_directories import affine, write
from tests.running_server import RunningServer

WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
"""For a server whose user is root, but who may read no more than others may."""

needs_rights = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root reads anything without setpriv"
)


def said(server: RunningServer, *words: str) -> Callable[[], bool]:
    """Whether a line of the log has all these words."""
    return lambda: any(all(word in line for word in words) for line in list(server.errors))


@pytest.fixture
def mounted(models: Path) -> Iterator[Path]:
    """The models' directory as a mount; what is mounted lies in ``volume`` beside it."""
    volume = models.rename(models.parent / "volume")
    models.mkdir()
    if subprocess.run(["mount", "--bind", volume, models], capture_output=True, check=False).returncode:
        pytest.skip("only root may mount")
    yield models
    subprocess.run(["umount", "--lazy", models], capture_output=True, check=False)


def test_an_unmounted_directory_unloads_nothing_and_is_taken_up_again(mounted: Path) -> None:
    write(mounted, "m", 1, affine(1.0, 1.0))
    with RunningServer(mounted) as server:
        subprocess.run(["umount", "--lazy", mounted], check=True)
        server.wait_for(said(server, "warning", "the served directory"), "a word about it")
        assert not list(mounted.iterdir())
        assert answer(server, "m") == [1.0]
        does_it_still_serve(server)
        volume = mounted.parent / "volume"
        write(volume, "m", 2, affine(1.0, 2.0))
        subprocess.run(["mount", "--bind", volume, mounted], check=True)
        server.wait_for(lambda: answer(server, "m") == [2.0], "the version that came meanwhile")
        server.wait_for(said(server, "resolved: "), "a word about that, too")
        does_it_still_serve(server)


@pytest.mark.parametrize("by", ["rename", "link"])
def test_another_directory_in_its_place_is_served(models: Path, by: str) -> None:
    write(models, "m", 1, affine(1.0, 1.0))
    write(models, "gone", 1, affine(1.0, 1.0))
    new = models.parent / "new"
    shutil.copytree(models, new)
    shutil.rmtree(new / "gone")
    write(new, "m", 2, affine(1.0, 2.0))
    served = models
    if by == "link":
        served = models.parent / "current"
        served.symlink_to(models)
    with RunningServer(served) as server:
        assert answer(server, "m") == answer(server, "gone") == [1.0]
        if by == "link":
            (models.parent / "next").symlink_to(new)
            (models.parent / "next").rename(served)
        else:
            models.rename(models.parent / "old")
            new.rename(models)
        server.wait_for(lambda: answer(server, "m") == [2.0], "the new directory's version")
        server.wait_for(
            lambda: server.get("/v2/models/gone/ready")[0] != 200, "what is not there any more to go"
        )
        does_it_still_serve(server)


@needs_rights
@pytest.mark.parametrize(
    ("what", "words"),
    [
        (".", ("the served directory", "Permission denied")),
        ("m", ("m: ", "Permission denied")),
    ],
)
def test_a_directory_that_nobody_may_read_unloads_nothing(
    models: Path, what: str, words: tuple[str, ...]
) -> None:
    write(models, "m", 1, affine(1.0, 1.0))
    with RunningServer(models, prefix=WITHOUT_RIGHTS) as server:
        (models / what).chmod(0)
        try:
            server.wait_for(said(server, "warning", *words), "a word about it")
            assert answer(server, "m") == [1.0]
            does_it_still_serve(server)
        finally:
            (models / what).chmod(0o755)
        write(models, "m", 2, affine(1.0, 2.0))
        server.wait_for(lambda: answer(server, "m") == [2.0], "the next version")


@needs_rights
@pytest.mark.parametrize("what", ["2", "2/model.onnx"])
def test_a_version_that_nobody_may_read_fails_and_is_loaded_once_somebody_may(
    models: Path, what: str
) -> None:
    settings = "[versions]\nload_retry_seconds = 0.2\nload_attempts = 1000\n"
    write(models, "m", 1, affine(1.0, 1.0), settings)
    with RunningServer(models, prefix=WITHOUT_RIGHTS) as server:
        draft = write(models, ".elsewhere", 2, affine(1.0, 2.0))
        locked = draft / "model.onnx" if "/" in what else draft
        locked.chmod(0)
        draft.rename(models / "m/2")
        try:
            server.wait_for(
                lambda: (
                    "Permission denied" in state(server, "m", 2) or said(server, "m", "Permission denied")()
                ),
                "the reason",
            )
            assert answer(server, "m") == [1.0]
            does_it_still_serve(server)
        finally:
            (models / "m" / what).chmod(0o755)
        server.wait_for(lambda: answer(server, "m") == [2.0], "the version that may be read now")


@needs_rights
def test_a_served_directory_that_nobody_may_read_at_the_start_is_waited_for(models: Path) -> None:
    models.chmod(0)
    try:
        server = RunningServer(models, prefix=WITHOUT_RIGHTS)
        server.wait_for(said(server, "warning", "the served directory", "Permission denied"), "the reason")
    finally:
        models.chmod(0o755)
    with server:
        server.wait_for(lambda: server.get(f"/v2/models/{MODEL}/ready")[0] == 200, "the model")
        does_it_still_serve(server)
