"""Contents that nothing can embed, and vectors that are none, behind a filler: a dead letter each.

Their neighbours in a batch are filled; what the command line does with the letters is done.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.operations.open_archive import open_archive_file
from tests.faults.archive_processes import filler
from tests.hostile_images import HostileServer, answer
from tests.image_encoder import picture, png, write_encoder
from tests.running_server import RunningServer
from tests.waiting import until

MAX_BYTES = 100_000


@contextmanager
def filled(folder: Path, space: str, settings: str, keys: Sequence[str]) -> Iterator[Archive]:
    """An archive whose keys a filler has taken, in one batch, as all were there before it; it runs on."""
    (folder / "archive.toml").write_text(f"cache = {{ absent_seconds = 0.05 }}\n{settings}")
    with open_archive_file(folder / "archive.toml") as archive:
        archive.want(space, keys)
        with filler(folder, "--threads", "1", "--batch", "16"):
            until(lambda: is_idle(archive))
            yield archive


def is_idle(archive: Archive) -> bool:
    return archive.queue.depth().messages == 0


def dead_letters(folder: Path, *words: str) -> str:
    """What the command line prints."""
    command = [sys.executable, "-m", "headrace", "archive", "dead-letters", *words]
    return subprocess.run(
        [*command, "--archive", str(folder / "archive.toml")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def check_list(folder: Path, expected: dict[str, str]) -> None:
    """Each key is in a row with its reason, or how that begins; nothing else is."""
    rows = dead_letters(folder, "list").splitlines()[1:]
    assert len(rows) == len(expected)
    for key, reason in expected.items():
        assert [row for row in rows if f" {key} " in row and f" {reason}" in row], rows


def all_found(archive: Archive, space: str, keys: Sequence[str]) -> bool:
    return bool(archive.lookup(space, keys).found.all())


def reasons(archive: Archive) -> dict[str, str]:
    return {letter.key: letter.reason for letter in archive.dead_letters.all()}


@pytest.fixture
def images() -> Iterator[HostileServer]:
    paths = {
        "/red.png": answer(picture()),
        "/page.png": answer(b"<html>not an image</html>"),
        "/large.png": answer(b"x" * (MAX_BYTES + 1)),
        "/bomb.png": answer(png(60_000, 60_000, zlib.compress(b"\0" * 1_000_000))),
        "/blue.png": answer(picture((0, 0, 255))),
    }
    with HostileServer(paths) as server:
        yield server


@pytest.mark.rest
def test_images_that_are_none_become_dead_letters_and_their_neighbours_are_filled(
    images: HostileServer, tmp_path: Path
) -> None:
    write_encoder(tmp_path)
    settings = f"""
        [spaces.covers]
        embedder = "eye"
        content = "http://127.0.0.1:{images.port}/{{key}}.png"
        [embedders.eye]
        kind = "image"
        model = "means.onnx"
        hosts = ["*"]
        ports = [{images.port}]
        allow_networks = ["127.0.0.1"]
        max_bytes = {MAX_BYTES}
        """
    ill = {
        "missing": "'127.0.0.1' answered 404 'Not Found'",
        "page": "not an image: expected JPEG, PNG, WEBP, GIF, got b'<html>",
        "large": f"too large: expected at most max_bytes = {MAX_BYTES} bytes, got {MAX_BYTES + 1}",
        "bomb": "too large: Image size (3600000000 pixels) exceeds limit of ",
    }
    keys = ["red", *ill, "blue"]
    with filled(tmp_path, "covers", settings, keys) as archive:
        assert archive.lookup("covers", keys).found.tolist() == [True, False, False, False, False, True]
        check_list(tmp_path, ill)

        for key in ("missing", "page", "large"):
            images.handlers[f"/{key}.png"] = answer(picture((0, 255, 0)))
        said = dead_letters(tmp_path, "replay", "covers", "missing", "page", "large")
        assert said == "queued again: 3 keys\n"
        until(lambda: all_found(archive, "covers", ["missing", "page", "large"]))
        vectors, _ = archive.lookup("covers", ["red", "blue", "missing", "page", "large"])
        assert len(np.unique(vectors[:3], axis=0)) == 3
        np.testing.assert_array_equal(vectors[3:], vectors[[2, 2]])
        until(lambda: reasons(archive).keys() == {"bomb"})

        assert images.asked.count("/bomb.png") == 1
        assert dead_letters(tmp_path, "drop", "covers", "bomb") == "dropped: 1 key\n"
        assert not reasons(archive)
        archive.want("covers", ["bomb"])
        until(lambda: reasons(archive).keys() == {"bomb"})
        assert images.asked.count("/bomb.png") == 2


MODEL = """
from pathlib import Path

import numpy as np


class Model:
    inputs = [("content", "BYTES", [])]
    outputs = [("vector", "FP32", [None])]

    def load(self, path, context):
        self.folder = Path(context.options["folder"])

    def predict(self, inputs):
        texts = [text.decode() for text in inputs["content"]]
        is_ill = not (self.folder / "mended").exists()
        with open(self.folder / "batches", "a") as file:
            file.write(",".join(texts) + "\\n")
        width = 4 if "long" in texts else 1 if "short" in texts else 3
        vectors = np.ones((len(texts), width if is_ill else 3), np.float32)
        vectors[:, 0] = [np.nan if is_ill and text == "nan" else len(text) for text in texts]
        return {"vector": vectors}
"""


@pytest.mark.rest
def test_vectors_that_are_none_become_dead_letters_and_their_neighbours_are_filled(tmp_path: Path) -> None:
    version = tmp_path / "models/encoder/1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "headrace.toml").write_text(
        f'[runtime.options]\nfolder = "{tmp_path}"\n[warm_up]\nprobe = false\n'
    )
    settings = """
        [spaces.texts]
        embedder = "remote"
        [embedders.remote]
        kind = "model"
        model = "encoder"
        url = "http://127.0.0.1:PORT"
        """
    keys = ["first", "nan", "second", "long", "short", "third one"]
    ill = {
        "nan": "the encoder returned a vector with NaN or infinity",
        "long": "the encoder fails: expected vectors of 3 numbers, got 4",
        "short": "the encoder fails: expected vectors of 3 numbers, got 1",
    }
    with (
        RunningServer(tmp_path / "models", "--allow-code") as server,
        filled(tmp_path, "texts", settings.replace("PORT", str(server.http_port)), keys) as archive,
    ):
        batches = [set(line.split(",")) for line in (tmp_path / "batches").read_text().splitlines()]
        assert set(keys) in batches
        vectors, found = archive.lookup("texts", keys)
        assert found.tolist() == [True, False, True, False, False, True]
        assert vectors[found].tolist() == [[5, 1, 1], [6, 1, 1], [9, 1, 1]]
        check_list(tmp_path, ill)

        (tmp_path / "mended").touch()
        assert dead_letters(tmp_path, "replay", "texts", "nan") == "queued again: 1 key\n"
        until(lambda: all_found(archive, "texts", ["nan"]))
        assert archive.lookup("texts", ["nan"]).vectors.tolist() == [[3, 1, 1]]
        until(lambda: reasons(archive).keys() == {"long", "short"})
        assert dead_letters(tmp_path, "drop", "texts") == "dropped: 2 keys\n"
        assert not reasons(archive)
        archive.want("texts", ["long", "short"])
        until(lambda: all_found(archive, "texts", ["long", "short"]))
        assert archive.lookup("texts", ["long", "short"]).vectors.tolist() == [[4, 1, 1], [5, 1, 1]]
