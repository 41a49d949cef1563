"""Keys: texts as callers have them, bytes as stores have them.

A store takes keys of up to ``LONGEST_KEY_BYTES``. A longer one goes by its beginning and a digest of it,
exactly that long, so that no short key can be mistaken for one; the key itself then stands behind the vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from headrace.errors import InvalidRequest, TooLarge, shown
from headrace.objects import encode
from headrace.stores.store import LONGEST_KEY_BYTES

SLICE_LETTERS = 64 * 1024
"""How many letters of keys are hashed in one step: up to some hundred microseconds' worth, in UTF-8."""

_DIGEST_BYTES = 32
_COUNTED_LETTERS = 1024 * 1024


def checked(keys: Sequence[str], most: int) -> list[str]:
    """Keys as a list, at most so many; what each is is checked where they are hashed.

    Raises:
        TooLarge: There are more.
        InvalidRequest: They are no sequence of keys.
    """
    if isinstance(keys, str | bytes):
        raise InvalidRequest(f"expected a list of texts, got one: {shown(keys)}", field="keys")
    if len(keys) > most:
        raise TooLarge(f"expected at most {most} keys, got {len(keys)}; ask in parts", field="keys")
    return list(keys)  # the caller's own may change meanwhile


def letters(keys: Sequence[object]) -> int:
    """How many letters some keys have together; what is no text, and is refused later, has none."""
    return sum([len(key) for key in keys if isinstance(key, str)])


def in_slices(keys: Sequence[object], most: int, longest: int) -> Iterator[slice]:
    """The parts of some keys that are worked on in one step, which holds all threads up.

    Args:
        keys: Texts, or what should be.
        most: How many keys a part has at the most; it has ``SLICE_LETTERS`` at the most, too, or one key.
        longest: How many bytes of UTF-8 one key may have.

    Raises:
        InvalidRequest: A key is far too long: to find out how many bytes it has would be a long step, too.
    """
    start = taken = 0
    for place, key in enumerate(keys):
        size = len(key) if isinstance(key, str) else 0
        if size > longest:
            raise wrong_key(key, place, longest)
        if place > start and (place - start >= most or taken + size > SLICE_LETTERS):
            yield slice(start, place)
            start, taken = place, 0
        taken += size
    if start < len(keys):
        yield slice(start, len(keys))


def wrong_key(key: object, row: int, longest: int) -> InvalidRequest:
    """The error for what cannot be a key.

    Args:
        key: What came.
        row: Its place.
        longest: How many bytes of UTF-8 one may have.
    """
    field = f"keys[{row}]"
    if not isinstance(key, str):
        return InvalidRequest(f"expected a text, got {type(key).__name__}", field=field)
    if len(key) > _COUNTED_LETTERS:
        return InvalidRequest(f"expected 1 to {longest} bytes of UTF-8, got {len(key)} or more", field=field)
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        problem = f"expected Unicode text, got {shown(key)}, which holds half a character"
        return InvalidRequest(problem, field=field)
    return InvalidRequest(f"expected 1 to {longest} bytes of UTF-8, got {size}", field=field)


def stored(key: bytes) -> bytes:
    """What a store has a key by.

    Args:
        key: In UTF-8.
    """
    if len(key) < LONGEST_KEY_BYTES:
        return key
    return key[: LONGEST_KEY_BYTES - _DIGEST_BYTES] + blake2b(key, digest_size=_DIGEST_BYTES).digest()


def all_stored(keys: Sequence[str], longest: int = LONGEST_KEY_BYTES) -> list[bytes]:
    """What a store has checked keys by.

    Args:
        keys: Texts.
        longest: How many bytes of UTF-8 one of them has at the most, as far as that is known.
    """
    texts, encoded = list(keys), [b""] * len(keys)
    if not encode(id(texts), id(encoded), len(texts)):  # a third of the time of one by one
        encoded = [key.encode() for key in texts]
    if longest < LONGEST_KEY_BYTES:
        return encoded
    return [stored(key) for key in encoded]


def is_digest(stored_key: bytes) -> bool:
    """Whether the key itself stands behind the vector."""
    return len(stored_key) == LONGEST_KEY_BYTES
