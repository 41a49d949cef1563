"""``python -m headrace.testing.store_process OPENER``: uses a store as the lines on standard input say.

It answers each line with one of its own:

- ``put PARTITION FIRST COUNT``: write numbered items; answers ``done``.
- ``put-on PARTITION``: write one item after another for ever, and print each number once it is written.
- ``get PARTITION FIRST COUNT``: answers how many of these items exist as written.
- ``add NAME COUNT``: increment a number in a record COUNT times; answers ``done``.
"""

from __future__ import annotations

import itertools
import sys

from headrace.storage.stores.store import Item, Store
from headrace.testing.opener import Opener


def items(first: int, count: int) -> list[Item]:
    """Return numbered items."""
    return [Item(b"key-%d" % number, b"value-%d" % number * 20) for number in range(first, first + count)]


def there(store: Store, partition: str, first: int, count: int) -> int:
    """Return how many of the numbered items a store has."""
    wanted = items(first, count)
    values = store.get_many(partition, [item.key for item in wanted])
    return sum(value == item.value for item, value in zip(wanted, values, strict=True))


def add(store: Store, name: str, count: int) -> None:
    """Increment a number in a record ``count`` times, while others may do the same."""
    while count:
        before = store.read(name)
        count -= store.swap(name, before, b"%d" % (int(before or b"0") + 1))


def _answer(store: Store, words: list[str]) -> str:
    match words:
        case ["put", partition, first, count]:
            store.put_many(partition, items(int(first), int(count)))
        case ["put-on", partition]:
            for number in itertools.count():
                store.put_many(partition, items(number, 1))
                _say(str(number))
        case ["get", partition, first, count]:
            return str(there(store, partition, int(first), int(count)))
        case ["add", name, count]:
            add(store, name, int(count))
        case _:
            return f"unknown command: {words}"
    return "done"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Execute the commands on standard input until it ends."""
    store: Store = Opener.from_json(sys.argv[1]).open()
    _say("ready")
    for line in sys.stdin:
        _say(_answer(store, line.split()))
    store.close()


if __name__ == "__main__":
    main()
