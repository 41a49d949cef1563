"""Keys: text for callers, bytes for stores.

Stores take keys of up to ``LONGEST_KEY_BYTES``. A key of that length or more is stored as a prefix and a
digest, exactly that long, so that no shorter key equals it. The whole key then follows the vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from headrace.base.errors import InvalidRequest, TooLarge, shown
from headrace.jit.python_objects import encode
from headrace.storage.stores.store import LONGEST_KEY_BYTES

SLICE_LETTERS = 64 * 1024
"""Maximum number of characters hashed in one step, which takes up to some hundred microseconds."""

_DIGEST_BYTES = 32
_COUNTED_LETTERS = 1024 * 1024


def checked(keys: Sequence[str], most: int) -> list[str]:
    """Return the keys as a list; each key is checked where it is hashed.

    Raises:
        TooLarge: There are more than ``most``.
        InvalidRequest: ``keys`` is a single text.
    """
    if isinstance(keys, str | bytes):
        raise InvalidRequest(f"expected a list of texts, got a single text: {shown(keys)}", field="keys")
    if len(keys) > most:
        raise TooLarge(f"expected at most {most} keys, got {len(keys)}; split the request", field="keys")
    return list(keys)  # the caller may change its own meanwhile


def letters(keys: Sequence[object]) -> int:
    """Return the number of characters in keys; a value that is not text, refused later, has none."""
    return sum([len(key) for key in keys if isinstance(key, str)])


def in_slices(keys: Sequence[object], most: int, longest: int) -> Iterator[slice]:
    """Yield slices of keys to process in one step, during which all other threads wait.

    Args:
        keys: Keys, possibly invalid.
        most: Maximum number of keys per slice. A slice also has at most ``SLICE_LETTERS`` characters, or
            a single key.
        longest: Maximum length of a key in bytes of UTF-8.

    Raises:
        InvalidRequest: A key has more characters than ``longest``; encoding it would take long too.
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
    """Return the error for an invalid key.

    Args:
        key: The value.
        row: Its index.
        longest: Maximum length of a key in bytes of UTF-8.
    """
    field = f"keys[{row}]"
    if not isinstance(key, str):
        return InvalidRequest(f"expected a text, got {type(key).__name__}", field=field)
    if len(key) > _COUNTED_LETTERS:
        return InvalidRequest(f"expected 1 to {longest} bytes of UTF-8, got {len(key)} or more", field=field)
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        problem = f"expected Unicode text, got {shown(key)}, which contains an unpaired surrogate"
        return InvalidRequest(problem, field=field)
    return InvalidRequest(f"expected 1 to {longest} bytes of UTF-8, got {size}", field=field)


def stored(key: bytes) -> bytes:
    """Return a key in its stored form.

    Args:
        key: The key in UTF-8.
    """
    if len(key) < LONGEST_KEY_BYTES:
        return key
    return key[: LONGEST_KEY_BYTES - _DIGEST_BYTES] + blake2b(key, digest_size=_DIGEST_BYTES).digest()


def all_stored(keys: Sequence[str], longest: int = LONGEST_KEY_BYTES) -> list[bytes]:
    """Return checked keys in their stored form.

    Args:
        keys: The keys.
        longest: Upper bound of a key's length in bytes of UTF-8, as far as known.
    """
    texts, encoded = list(keys), [b""] * len(keys)
    if not encode(id(texts), id(encoded), len(texts)):  # takes a third of the time of the loop below
        encoded = [key.encode() for key in texts]
    if longest < LONGEST_KEY_BYTES:
        return encoded
    return [stored(key) for key in encoded]


def is_digest(stored_key: bytes) -> bool:
    """Return whether the whole key is stored after the vector."""
    return len(stored_key) == LONGEST_KEY_BYTES
