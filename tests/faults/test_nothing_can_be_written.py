"""Nothing can be written: click models are served all the same, from kernels that were kept before or not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import headrace
from tests.conformance.ctr_models import field_inputs, write
from tests.running_server import RunningServer

LOST = ("ctr_inputs.*", "hashing.place_integers*")
"""Some kernels that each click model needs, and that are compiled in a second or two."""

NOT_KEPT = "compiled kernels cannot be cached"
BY_A_CHILD = "compiling kernels in a separate process"

pytestmark = [
    pytest.mark.rest,  # The first one waits for all kernels to be compiled.
    pytest.mark.skipif(sys.platform != "linux", reason="rights are taken away as on Linux"),
    pytest.mark.skipif(
        os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root writes anywhere without setpriv"
    ),
]


class Place:
    """A copy of headrace in a place that nobody may write to, and a home that nobody may either.

    Attributes:
        models: A directory with one click model.
        kernels: Where kernels are kept: for this place's own sources, and for no others.
        compiled: What `headrace compile` said when it filled that.
        environment: For processes that use the copy.
        prefix: Words before a command that let it write nowhere it may not, if the user is root.
    """

    def __init__(self, folder: Path) -> None:
        self.models, self.kernels = folder / "models", folder / "kernels"
        self.prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
        version = self.models / "clicks" / "1"
        version.mkdir(parents=True)
        write(version, "deepfm")
        installed = folder / "installed"
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(headrace.__file__).parent, installed / "headrace", ignore=without)
        self.locked = [
            folder / "home",
            self.kernels,
            *(path for path in installed.rglob("*") if path.is_dir()),
        ]
        for directory in self.locked[:2]:
            directory.mkdir()
        self.environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(folder / "home" / "cache"),
            "NUMBA_CACHE_DIR": str(self.kernels),
            "PYTHONPATH": str(installed),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.compiled = ""

    def set_modes(self, mode: int) -> None:
        kept = [path for path in self.kernels.rglob("*") if path.is_dir()]
        for directory in (*self.locked, *kept):
            directory.chmod(mode)

    def fill(self) -> None:
        """Compile the kernels as whoever builds an image does."""
        command = [sys.executable, "-m", "headrace", "compile", str(self.models)]
        self.compiled = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def kept(self) -> dict[Path, bytes]:
        """The kernels on disk that are called as ``LOST`` says, with their descriptions."""
        files = [path for pattern in LOST for path in self.kernels.rglob(pattern)]
        return {path: path.read_bytes() for path in files}

    def server(self) -> RunningServer:
        return RunningServer(self.models, prefix=self.prefix, environment=self.environment)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """All kernels are compiled once, for all tests here: that takes a minute."""
    made = Place(tmp_path_factory.mktemp("place"))
    made.fill()
    return made


@pytest.fixture
def place(filled: Place) -> Iterator[Place]:
    """The place with all kernels kept, and with no right taken away yet."""
    kept = filled.kept()
    yield filled
    filled.set_modes(0o755)
    for path, content in kept.items():
        path.write_bytes(content)


@pytest.fixture
def without_some(place: Place) -> Place:
    """The place where some kernels are not kept."""
    lost = place.kept()
    assert len([path for path in lost if path.suffix == ".nbc"]) > 1
    for path in lost:
        path.unlink()
    return place


def answer(server: RunningServer) -> float:
    row = {name: as_json(array[0]) for name, array in field_inputs(1).items()}
    status, said = server.post("/v1/models/clicks:predict", {"instances": [row]})
    assert status == 200, said
    return float(said["predictions"][0])  # type: ignore[index]


def as_json(value: object) -> object:
    if isinstance(value, np.ndarray):
        return [as_json(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value.item()  # type: ignore[attr-defined]


def test_kernels_are_compiled_in_memory_with_one_warning(without_some: Place) -> None:
    without_some.set_modes(0o555)
    with without_some.server() as server:
        assert 0 < answer(server) < 1
    assert "\n".join(server.errors).count(NOT_KEPT) == 1
    assert not without_some.kept()


def test_kernels_that_an_image_was_built_with_are_found(place: Place) -> None:
    assert "clicks/1 … " in place.compiled
    assert f"kernels are kept in {place.kernels}" in place.compiled
    place.set_modes(0o555)
    with place.server() as server:
        assert 0 < answer(server) < 1
    said = "\n".join(server.errors)
    assert NOT_KEPT not in said
    assert BY_A_CHILD not in said


def test_a_server_compiles_in_a_process_of_its_own_and_keeps_what_it_can(without_some: Place) -> None:
    with without_some.server() as server:
        assert 0 < answer(server) < 1
    assert BY_A_CHILD in "\n".join(server.errors)
    assert [path for path in without_some.kept() if path.suffix == ".nbc"]
