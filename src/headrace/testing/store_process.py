"""``python -m headrace.testing.store_process OPENER``: uses a store as the lines on its standard input say.

It answers each line with one of its own:

- ``put PARTITION FIRST COUNT``: writes that many numbered items; ``done``.
- ``put-on PARTITION``: writes item after item for ever, and says each one's number when it is written.
- ``get PARTITION FIRST COUNT``: how many of these items are there, as they were written.
- ``add NAME COUNT``: adds one to a number in a record, as often; ``done``.
"""

from __future__ import annotations

import itertools
import sys

from headrace.stores.store import Item, Store
from headrace.testing.opener import Opener


def items(first: int, count: int) -> list[Item]:
    """Items that are told by their numbers."""
    return [Item(b"key-%d" % number, b"value-%d" % number * 20) for number in range(first, first + count)]


def there(store: Store, partition: str, first: int, count: int) -> int:
    """How many of these items a store has."""
    wanted = items(first, count)
    values = store.get_many(partition, [item.key for item in wanted])
    return sum(value == item.value for item, value in zip(wanted, values, strict=True))


def add(store: Store, name: str, count: int) -> None:
    """Add one to a number in a record, so many times, whoever else does the same."""
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
            return f"not known: {words}"
    return "done"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Do as the lines say, until there are no more."""
    store: Store = Opener.from_json(sys.argv[1]).open()
    _say("ready")
    for line in sys.stdin:
        _say(_answer(store, line.split()))
    store.close()


if __name__ == "__main__":
    main()
