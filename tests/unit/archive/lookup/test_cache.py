"""The bounded memory before a store."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.archive.lookup.cache import Cache
from headrace.archive.model.records import Form
from headrace.base.errors import InvalidRequest

WRITTEN, NOW = 1_800_000_000_000, 1000
FORM = Form(8, "float32")


def keys(count: int, prefix: str = "film") -> list[str]:
    return [f"{prefix}/{number}" for number in range(count)]


def numbers(count: int, dimension: int = 8) -> np.ndarray:
    return np.arange(count * dimension, dtype=np.float32).reshape(count, dimension)


def put(
    cache: Cache, texts: list[str], vectors: np.ndarray, form: Form = FORM, written: int = WRITTEN
) -> None:
    records = form.encode(vectors, written)
    cache.put(cache.hashes(texts, 8192), cache.where(records), NOW)


def find(cache: Cache, texts: list[str], since: tuple[int, int] = (0, 0), now: int = NOW):
    return cache.find(cache.hashes(texts, 8192), since, now)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("dimension", [1, 3, 8, 257])
def test_put_keys_are_found_and_others_get_the_oov_vector(dtype: str, dimension: int) -> None:
    form = Form(dimension, dtype)
    cache = Cache(form, 4 * 1024 * 1024)
    oov = np.linspace(1, 2, dimension)
    cache.set_oov(oov)
    given = np.random.default_rng(1).normal(size=(500, dimension)).astype(np.float32)
    put(cache, keys(500), given, form)
    mixed = [text for pair in zip(keys(500), keys(500, "none"), strict=True) for text in pair]
    found = find(cache, mixed)
    assert found.vectors.dtype == form.answered
    np.testing.assert_array_equal(found.vectors[::2], form.decode(form.encode(given, WRITTEN)))
    np.testing.assert_array_equal(found.vectors[1::2], np.tile(oov.astype(form.answered), (500, 1)))
    assert (found.written[::2] == WRITTEN).all()
    assert not found.written[1::2].any()
    assert found.asked.tolist() == list(range(1, 1000, 2))


def test_the_newest_of_two_values_stays_in_whichever_order_they_come() -> None:
    cache = Cache(FORM, 2**20)
    put(cache, ["film"], numbers(1), written=WRITTEN)
    put(cache, ["film"], numbers(1) + 1, written=WRITTEN + 5)
    put(cache, ["film"], numbers(1), written=WRITTEN)
    found = find(cache, ["film"])
    assert found.written.tolist() == [WRITTEN + 5]
    np.testing.assert_array_equal(found.vectors, numbers(1) + 1)


def test_it_never_holds_more_than_it_may_and_keeps_what_is_asked_for() -> None:
    cache = Cache(FORM, 200_000)
    often, seldom = keys(200, "often"), keys(50_000, "seldom")
    put(cache, often, numbers(200))
    for start in range(0, len(seldom), 100):
        put(cache, seldom[start : start + 100], numbers(100))
        find(cache, often)
    capacity = len(cache._table[1])
    assert 0.9 * capacity < cache.count() <= capacity
    assert np.count_nonzero(find(cache, often).written) > 190


def test_a_full_cache_still_answers_each_key_with_its_own_vector() -> None:
    cache = Cache(FORM, 100_000)
    texts, given = keys(20_000), numbers(20_000)
    for start in range(0, 20_000, 500):
        put(cache, texts[start : start + 500], given[start : start + 500])
    found = find(cache, texts)
    there = np.flatnonzero(found.written)
    assert len(there) == cache.count()
    np.testing.assert_array_equal(found.vectors[there], given[there])


def test_expired_vectors_are_read_from_the_store_again() -> None:
    cache = Cache(FORM, 2**20)
    put(cache, ["film"], numbers(1))
    assert find(cache, ["film"], (WRITTEN, NOW)).written.all()
    for since in ((WRITTEN + 1, 0), (0, NOW + 1)):
        found = find(cache, ["film"], since)
        assert found.written.tolist() == [0]
        assert found.asked.tolist() == [0]


def test_a_removed_key_is_gone_and_can_come_back() -> None:
    cache = Cache(FORM, 2**20)
    put(cache, keys(10), numbers(10))
    cache.remove(cache.hashes(keys(3), 8192))
    assert np.flatnonzero(find(cache, keys(10)).written).tolist() == list(range(3, 10))
    put(cache, keys(3), numbers(3) + 9)
    np.testing.assert_array_equal(find(cache, keys(3)).vectors, numbers(3) + 9)
    cache.clear()
    assert cache.count() == 0
    assert not find(cache, keys(10)).written.any()


def test_a_key_that_is_missing_and_queued_is_not_asked_for_until_one_of_both_is_over() -> None:
    cache = Cache(FORM, 2**20)
    hashes = cache.hashes(["film"], 8192)
    cache.mark(hashes, NOW + 10, -1)
    assert find(cache, ["film"]).asked.tolist() == [0]  # not queued yet
    assert not cache.queued(hashes, NOW).any()
    cache.mark(hashes, -1, NOW + 100)
    assert cache.queued(hashes, NOW).all()
    assert find(cache, ["film"]).asked.tolist() == []
    assert find(cache, ["film"], now=NOW + 10).asked.tolist() == [0]  # the store may have it by now
    assert not cache.queued(hashes, NOW + 100).any()  # nobody knows what became of it


def test_marks_of_different_keys_do_not_push_one_another_out_while_there_is_room() -> None:
    cache = Cache(FORM, 2**20)
    texts = keys(500)
    hashes = cache.hashes(texts, 8192)
    cache.mark(hashes, NOW + 10, -1)
    cache.mark(hashes, -1, NOW + 10)
    assert len(find(cache, texts).asked) < 5


def test_marks_are_bounded_and_lose_the_oldest() -> None:
    cache = Cache(FORM, 2**16)
    for start in range(0, 100_000, 1000):
        hashes = cache.hashes(keys(1000, f"part{start}"), 8192)
        cache.mark(hashes, NOW + start + 10, NOW + start + 10)
    last = cache.hashes(keys(1000, "part99000"), 8192)
    assert cache.queued(last, NOW).any()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", r"keys\[1\]: expected 1 to 100 bytes of UTF-8, got 0"),
        ("x" * 101, r"keys\[1\]: expected 1 to 100 bytes of UTF-8, got 101"),
        ("é" * 51, r"keys\[1\]: expected 1 to 100 bytes of UTF-8, got 102"),
        (7, r"keys\[1\]: expected a text, got int"),
        (None, r"keys\[1\]: expected a text, got NoneType"),
        (b"film", r"keys\[1\]: expected a text, got bytes"),
        ("\ud800", r"keys\[1\]: expected Unicode text, got '\\ud800', which contains an unpaired surrogate"),
    ],
)
def test_invalid_keys_are_named(key: object, said: str) -> None:
    cache = Cache(FORM, 2**20)
    with pytest.raises(InvalidRequest, match=said):
        cache.hashes(["film", key, "other"], 100)  # type: ignore[list-item]
    assert cache.hashes(["film"], 100).shape == (1, 2)  # no error is left behind in Python


def test_keys_that_differ_anywhere_differ() -> None:
    cache = Cache(FORM, 2**20)
    texts = ["a", "a\0", "a\0\0", "\0", "../a", "é", "e\u0301", "x" * 63, "x" * 64, "x" * 65, "日本", "😀"]
    texts += ["y" * place + "z" + "y" * (40 - place) for place in range(41)]
    put(cache, texts, numbers(len(texts)))
    np.testing.assert_array_equal(find(cache, texts).vectors, numbers(len(texts)))
    assert len(np.unique(cache.hashes(texts, 8192), axis=0)) == len(texts)


def test_the_hash_is_siphash_1_3() -> None:
    """Against a plain computation of the paper's rounds: published vectors are those of SipHash-2-4."""
    cache = Cache(FORM, 2**20)
    secret = [int(half) for half in cache._secret]
    for text in ("a", "abcdefg", "abcdefgh", "https://images.example/000000007919.jpg", "é" * 33):
        assert tuple(map(int, cache.hashes([text], 8192)[0])) == _siphash(text.encode(), *secret)


def _siphash(data: bytes, key0: int, key1: int) -> tuple[int, int]:
    mask = 2**64 - 1

    def turned(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & mask

    def one_round(v: list[int]) -> None:
        v[0], v[2] = (v[0] + v[1]) & mask, (v[2] + v[3]) & mask
        v[1], v[3] = turned(v[1], 13) ^ v[0], turned(v[3], 16) ^ v[2]
        v[0] = turned(v[0], 32)
        v[2], v[0] = (v[2] + v[1]) & mask, (v[0] + v[3]) & mask
        v[1], v[3] = turned(v[1], 17) ^ v[2], turned(v[3], 21) ^ v[0]
        v[2] = turned(v[2], 32)

    v = [
        key0 ^ 0x736F6D6570736575,
        key1 ^ 0x646F72616E646F6D ^ 0xEE,
        key0 ^ 0x6C7967656E657261,
        key1 ^ 0x7465646279746573,
    ]
    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 255) << 56)
    for word in words:
        v[3] ^= word
        one_round(v)
        v[0] ^= word
    v[2] ^= 0xEE
    for _ in range(3):
        one_round(v)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for _ in range(3):
        one_round(v)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]
