"""Loading a file into a table, in one call."""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.archive.lookup.archive import Archive
from headrace.archive.tables.file_readers import ColumnFile
from headrace.archive.tables.load import Load, Target


def loader(archive: Archive, space: str, file: Path) -> Load:
    return Load(archive, space, ColumnFile(file), threading.Event())


def load_table(
    archive: Archive, table: str, file: Path, key: str = "", written: str = "", *, is_other: bool = False
) -> Target:
    load = loader(archive, table, file)
    target = load.table(key, written, lambda rows, share: None, is_other_allowed=is_other)
    target = load.run(target, lambda rows, share: None)
    load.make_default(target)
    archive._spaces.look(table)
    return target
