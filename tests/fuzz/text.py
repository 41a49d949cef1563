"""Rows as text under fuzzing: CSV and VW's format, as files and as they arrive through a pipe."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from headrace.archive.tables.file_readers import ColumnFile
from headrace.base.errors import HeadraceError
from headrace.stream import vw_text
from headrace.stream.encode import EncodeSettings, encode
from headrace.stream.schema_inference import Hints
from headrace.stream.text_files import CsvRows, File, Lines, WholeLines, WholeRows

_DELIMITERS = ",;\t|"
_PIECES = (1, 7, 100)
_HINTS = Hints(label="click", separator="|")
_CSV = (
    "click,user,tags,age,when\n1,ann,a|b,3.5,2026-01-01T00:00:00Z\n0,\"b, \"\"c\"\"\nd\",,NA, 2026-01-02\n",
    "\ufeffclick,user\r\n1, 7\r\n0,8\r\n",
    "click,n,\r1,0.5,\r0,1e3,\r",
    'click,user\n1,"a\rb"\n0,5" x\n',
)  # fmt: skip
_VW = "1 |user ann |n price:0.5 a b\n-1 2.0 'tag|user bob |n price:1 c\n0 | x y:2\n"


class _Pipe:
    """A source in which bytes arrive a few at a time, and none between them."""

    wakes = False

    def __init__(self, content: bytes, piece: int) -> None:
        self._content, self._piece = memoryview(content), piece
        self._is_dry = True

    def attach(self, streams: object) -> None:
        """See ``Pieces``: text has no streams in it."""

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        """See ``Source``."""
        self._is_dry = not self._is_dry
        if self._is_dry and timeout is not None:
            return None
        count = min(self._piece, len(self._content), len(room))
        room[:count], self._content = self._content[:count], self._content[count:]
        return count

    def wake(self) -> None:
        """See ``Source``: no read waits."""

    def close(self) -> None:
        """See ``Source``."""


class Unlike(Exception):
    """Rows that depend on how they arrive."""


class Text:
    """A file that is written anew for each input."""

    def __init__(self) -> None:
        """Make its directory."""
        self._place = tempfile.TemporaryDirectory()
        self._file = Path(self._place.name, "rows.csv")
        self._readers = (self._encoded_csv, self._encoded_vw, self._loaded, self._live_csv, self._live_vw)

    def read(self, data: bytes) -> None:
        """The first byte says which reader reads the rest, the second how."""
        if len(data) >= 2:
            with suppress(HeadraceError):
                self._readers[data[0] % len(self._readers)](data[2:], data[1])

    def seeds(self) -> Iterator[bytes]:
        """Some rows for each reader, in each way."""
        for place, reader in enumerate(self._readers):
            for text in (_VW,) if "vw" in reader.__name__ else _CSV:
                for how in range(len(_DELIMITERS)):
                    yield bytes((place, how)) + text.replace(",", _DELIMITERS[how]).encode()

    def _encoded_csv(self, content: bytes, how: int) -> None:
        self._file.write_bytes(content)
        delimiter = _DELIMITERS[how % len(_DELIMITERS)]
        for _ in encode(EncodeSettings("csv", hints=_HINTS, delimiter=delimiter), self._file).batches:
            pass

    def _encoded_vw(self, content: bytes, _: int) -> None:
        self._file.write_bytes(content)
        for _batch in encode(EncodeSettings("vw", hints=_HINTS), self._file).batches:
            pass

    def _loaded(self, content: bytes, how: int) -> None:
        self._file.write_bytes(content)
        file = ColumnFile(self._file, "csv", _DELIMITERS[how % len(_DELIMITERS)])
        rows = sum(batch.num_rows for batch in file.batches(file.schema.names, 100))
        file.place(rows)

    def _live_csv(self, content: bytes, how: int) -> None:
        """The rows are the same, however few bytes arrive at a time."""
        delimiter = _DELIMITERS[how % len(_DELIMITERS)]

        def rows(piece: int) -> list[dict[str, object]] | None:
            try:
                reader = CsvRows(Lines(_pipe(content, piece), WholeRows(delimiter)), delimiter)
                batches = reader if reader.names else ()  # callers refuse files without any name
                return pa.Table.from_batches(list(batches), _columns(reader.names)).to_pylist()
            except HeadraceError:
                return None

        whole, live = rows(len(content)), rows(_PIECES[how % len(_PIECES)])
        is_guessed = None in (whole, live) and b"\\" in content  # by what else the piece has in it
        if whole != live and not is_guessed:
            raise Unlike

    def _live_vw(self, content: bytes, how: int) -> None:
        lines = Lines(_pipe(content, _PIECES[how % len(_PIECES)]), WholeLines())
        groups = (piece.decode("utf-8", "replace").split("\n") for piece in lines)
        for _ in vw_text.read_batches(groups, None):
            pass


def _pipe(content: bytes, piece: int) -> File:
    made: File = _Pipe(content, piece)  # type: ignore[assignment]  # it is a source, which Lines takes, too
    return made


def _columns(names: list[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])
