"""What is read from disk and from streams under fuzzing: each reader of a file, and the parser of rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from headrace.base.errors import ConfigError, HeadraceError
from headrace.config.toml_reader import parse
from headrace.stream.arrow_ipc_parser import StreamParser
from tests.conformance.ctr_models import write as write_click_model
from tests.properties.test_hostile_files import READERS
from tests.streams import clicks, stream_of

_PIECES = (1 << 30, 1, 7, 4096)


class Files:
    """A click model's directory, one file of which is written anew for each input."""

    def __init__(self) -> None:
        """Write the model."""
        self._place = tempfile.TemporaryDirectory()
        self._directory = Path(self._place.name, "1")
        self._directory.mkdir()
        write_click_model(self._directory, "fm")
        (self._directory / "model.onnx").write_bytes(b"\x0a\x08location\x12\x0edense.bias.npy")
        self._readers = [READERS[name] for name in sorted(READERS)]

    def read(self, data: bytes) -> None:
        """The first byte says which file the rest is."""
        if not data:
            return
        name, reader = self._readers[data[0] % len(self._readers)]
        file = self._directory / name
        before = file.read_bytes() if file.exists() else None
        file.write_bytes(data[1:])
        try:
            with suppress(HeadraceError):
                reader(self._directory)
        finally:
            file.unlink() if before is None else file.write_bytes(before)

    def seeds(self) -> Iterator[bytes]:
        """Each file as it is."""
        for number, (name, _) in enumerate(self._readers):
            file = self._directory / name
            yield bytes((number,)) + (file.read_bytes() if file.exists() else b"{}")

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self._place.name, ignore_errors=True)


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


def read_settings(data: bytes) -> None:
    """Settings in TOML."""
    with suppress(ConfigError, UnicodeDecodeError):
        parse(data.decode(), "settings")


def settings_seeds() -> Iterator[bytes]:
    """Some settings."""
    yield b'[batching]\nmax_batch_rows = 8\n[versions]\nlabels = {a = 1}\npolicy = "all"\n'
