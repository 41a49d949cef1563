"""Reads an LMDB file in place thousands of times, each time with other bytes of it changed.

The copy lies between two pages that nobody may touch, so that a read beside it ends this process. Run by
``test_lmdb_pages.py`` with a directory for the file, and how many times.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np

from headrace.storage.settings import LmdbStore
from headrace.storage.stores.lmdb import InLmdbStore
from headrace.storage.stores.lmdb_pages import DAMAGED, READ, find
from headrace.storage.stores.store import Item

KEYS = 400
_NO_ACCESS = 0
_KIND_AT, _KINDS = 10, 0x03  # branches and leaves


def main(folder: Path, turns: int) -> None:
    """Print how often it was read, and how often it was seen to be damaged."""
    draw = np.random.default_rng(1)
    store = InLmdbStore(LmdbStore(path=folder, sync=False))
    store.create("values")
    sizes = np.sort(draw.choice([0, 1, 40, 530, 1500, 9000], KEYS))[::-1]  # the file ends with leaves
    for part in np.array_split(np.arange(KEYS), 4):
        for ttl in (0.0, 1e6):
            items = [Item(b"%d %d" % (ttl, key), draw.bytes(int(sizes[key]))) for key in part.tolist()]
            store.put_many("values", items, ttl)
    with store._reading() as transaction:
        tree, known = store._pages.tree(transaction), store._known(transaction, "values")
        content = store._file.data.read_bytes()
    base, memory = guarded(content)
    copy, size = tree._replace(base=base), tree.page_bytes
    pages = [one for one in range(2, tree.last + 1) if content[one * size + _KIND_AT] & _KINDS]
    ended = {READ: 0, DAMAGED: 0}
    for _ in range(turns):
        changed = change(memory, pages, size, draw)
        for prefix, now, ttl in ((known.staying, -1, 0), (known.ending, 0, 10**6)):
            keys = [f"{ttl} {key}" for key in draw.integers(0, KEYS, 64)]
            places = np.zeros((len(keys), 2), np.int64)
            how = find(copy, int.from_bytes(prefix), now, id(keys), places)
            ended[how] += 1
            for at, length in places.tolist() if how == READ else ():
                if at and not (base <= at and at + length <= base + len(content)):
                    sys.exit(f"a value of {length} bytes at {at - base} of {len(content)}")
        for place in changed:
            memory[place] = content[place]
    print(ended[READ], ended[DAMAGED])


def guarded(content: bytes) -> tuple[int, memoryview]:
    """A copy with a page before and a page behind it that end the process."""
    room = mmap.mmap(-1, len(content) + 2 * mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(room))
    memory = memoryview(room)[mmap.PAGESIZE : mmap.PAGESIZE + len(content)]
    memory[:] = content
    for guard in (first, first + mmap.PAGESIZE + len(content)):
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(mmap.PAGESIZE), _NO_ACCESS):
            sys.exit("the pages beside it cannot be guarded")
    return first + mmap.PAGESIZE, memory


def change(memory: memoryview, pages: list[int], page_bytes: int, draw: np.random.Generator) -> list[int]:
    """Change some bytes of some pages, those at their beginning the most; returns which."""
    changed = []
    for page in draw.choice(pages, draw.integers(1, 24)).tolist():
        inside = draw.integers(64 if draw.random() < 0.7 else page_bytes)
        changed.append(page * page_bytes + int(inside))
        memory[changed[-1]] = int(draw.choice([0, 1, 0x7F, 0xFF, draw.integers(256)]))
    return changed


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
