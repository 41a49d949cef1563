"""What is read from disk and from streams under fuzzing: each file of a version, and the parser of rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from headrace.base.errors import HeadraceError
from headrace.ctr.click_model import Weights
from headrace.ctr.files.model_files import MODEL_FILE, arrays_of, describe, read_model, write_model
from headrace.ctr.files.quantization import quantize
from headrace.ctr.model_settings import Kind
from headrace.runtimes.ctr import servable_of
from headrace.stream.arrow_ipc_parser import StreamParser
from headrace.training.releasing.patch import find_patch, open_base, write_patch
from headrace.versions.manifest import publish
from tests.click_weights import FEATURES, settings_for, weights_for
from tests.conformance.ctr_models import write as write_click_model
from tests.properties.test_hostile_files import READERS
from tests.streams import clicks, stream_of

_PIECES = (1 << 30, 1, 7, 4096)


class Files:
    """Click models of several kinds, one file of which is written anew for each input."""

    def __init__(self) -> None:
        """Write the models."""
        self._place = tempfile.TemporaryDirectory()
        place = Path(self._place.name)
        first = place / "fm" / "1"
        first.mkdir(parents=True)
        write_click_model(first, "fm")
        (first / "model.onnx").write_bytes(b"\x0a\x08location\x12\x0edense.bias.npy")
        self._readers: list[tuple[Path, Callable[[], object]]] = [
            (first / name, partial(reader, first))
            for name, reader in (READERS[one] for one in sorted(READERS))
        ]
        for version in _versions(place):
            self._readers.append((version / MODEL_FILE, partial(servable_of, version)))
            self._readers += [(file, partial(read_model, version)) for file in sorted(version.glob("*.npy"))]

    def read(self, data: bytes) -> None:
        """The first byte says which file the rest is."""
        if not data:
            return
        file, reader = self._readers[data[0] % len(self._readers)]
        before = file.read_bytes() if file.exists() else None
        file.write_bytes(data[1:])
        try:
            with suppress(HeadraceError):
                reader()
        finally:
            file.unlink() if before is None else file.write_bytes(before)

    def seeds(self) -> Iterator[bytes]:
        """Each file as it is."""
        for number, (file, _) in enumerate(self._readers):
            yield bytes((number,)) + (file.read_bytes() if file.exists() else b"{}")

    def close(self) -> None:
        """Remove the models."""
        shutil.rmtree(self._place.name, ignore_errors=True)


def _versions(place: Path) -> Iterator[Path]:
    """Whole versions with a network, with a mixture, and with tables of 8 bits; and a patch of the last."""
    yield _published(place, "deepffm", weights_for(settings_for("deepffm")))
    yield _published(place, "mdn", weights_for(settings_for("mdn")))
    weights = quantize(weights_for(settings_for("fwfm")), 8)
    yield _published(place, "fwfm", weights)
    base = open_base(place / "fwfm", 1)
    weights.tables["embeddings"].values[[3, 500, 999]] += np.int8(1)
    weights.dense["bias"][0] += 1
    patch = base and find_patch(base, describe(settings_for("fwfm"), FEATURES, weights), arrays_of(weights))
    if patch is None:
        raise RuntimeError("no patch")
    yield publish(lambda draft: write_patch(draft, patch, arrays_of(weights)), place / "fwfm")


def _published(place: Path, kind: Kind, weights: Weights) -> Path:
    return publish(lambda draft: write_model(draft, settings_for(kind), FEATURES, weights), place / kind)


def read_stream(data: bytes) -> None:
    """Rows of a stream, whole or in pieces of some bytes: the first byte says."""
    if not data:
        return
    parser, piece = StreamParser(most_bytes=2**22), _PIECES[data[0] % len(_PIECES)]
    with suppress(HeadraceError):
        for start in range(1, len(data), piece):
            parser.feed(data[start : start + piece])


def stream_seeds() -> Iterator[bytes]:
    """A stream, by each way in which it may come."""
    for how in range(len(_PIECES)):
        yield bytes((how,)) + stream_of(clicks(50), rows=20)
