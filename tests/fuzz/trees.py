"""Files of tree ensembles under fuzzing: their libraries end the process if they are given a damaged one."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from headrace.base.errors import HeadraceError
from headrace.base.tensors import STRING, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Servable
from headrace.runtimes import registry
from tests.conformance.lightgbm_models import LIGHTGBM
from tests.conformance.xgboost_models import XGBOOST

_ROWS = 64
_MOST_VALUES = 1_000_000  # a damaged file may claim any number of columns
_DIGITS = b"0123456789-., \n=[]{}"


class Trees:
    """A model file of each kind, written anew for each input."""

    def __init__(self) -> None:
        """Write the models."""
        self._place = Path(tempfile.mkdtemp())
        self._whole: list[tuple[str, bytes]] = []
        for example in (*LIGHTGBM.examples, *XGBOOST.examples):
            directory = self._place / str(len(self._whole))
            directory.mkdir()
            example.write(directory)
            (file,) = directory.iterdir()
            self._whole.append((file.name, file.read_bytes()))

    def read(self, data: bytes) -> None:
        """The first byte says which file the rest is."""
        if not data:
            return
        name, _ = self._whole[data[0] % len(self._whole)]
        version = self._place / "damaged"
        version.mkdir()
        (version / name).write_bytes(data[1:])
        try:
            with suppress(HeadraceError):
                servable = registry.load(version, registry.RuntimeOptions())
                _ask(servable)
                servable.close()
        finally:
            shutil.rmtree(version)

    def seeds(self) -> Iterator[bytes]:
        """Each file as it is."""
        for number, (_, whole) in enumerate(self._whole):
            yield bytes((number,)) + whole

    def close(self) -> None:
        """Remove the models."""
        shutil.rmtree(self._place, ignore_errors=True)


def _ask(servable: Servable) -> None:
    chosen = np.random.default_rng(0)
    inputs: dict[str, np.ndarray] = {}
    for spec in servable.signatures[DEFAULT_SIGNATURE].inputs:
        if spec.dtype == STRING:
            inputs[spec.name] = np.array([b"de", b"fr", b"", b"nowhere"] * (_ROWS // 4), object)
        else:
            width = [size or 1 for size in spec.shape]
            if np.prod(width) * _ROWS > _MOST_VALUES:
                return
            inputs[spec.name] = chosen.normal(0, 30, (_ROWS, *width)).astype(spec.dtype)
    _predict(servable, inputs)
    _predict(servable, {name: column[:1] for name, column in inputs.items()})


def _predict(servable: Servable, inputs: Tensors) -> None:
    servable.predict(inputs)


def damaged(whole: bytes, chosen: random.Random) -> bytes:
    """A file that was cut, or in which some bytes or a number are others."""
    data, at = bytearray(whole), chosen.randrange(len(whole))
    match chosen.randrange(4):
        case 0:
            del data[at:]
        case 1:
            data[at] = chosen.randrange(256)
        case 2:
            for _ in range(5):
                data[chosen.randrange(len(data))] = chosen.choice(_DIGITS)
        case _:
            end = at
            while data[end : end + 1].isdigit():
                end += 1
            data[at:end] = chosen.choice((b"0", b"1", b"-1", b"-99", b"1e9", b"9999999999", b"nan", b""))
    return bytes(data)


def main(times: int, seed: int) -> None:
    """Damage each file so many times, and print the number of the damage before it is read."""
    trees, chosen = Trees(), random.Random(seed)
    try:
        for number, whole in enumerate(trees.seeds()):
            for time in range(times):
                print(number, time, flush=True)
                trees.read(whole[:1] + damaged(whole[1:], chosen))
    finally:
        trees.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
