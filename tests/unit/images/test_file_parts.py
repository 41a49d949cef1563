"""The parts of image files: checksums, scans and sizes, without decoding."""

from __future__ import annotations

import pytest
from PIL import Image

from headrace.images.file_parts import MOST_SCANS, check_checksums, png_bit_depth, scans, webp_size
from headrace.net.content_failures import Failing
from tests.image_encoder import chunk, encoded, photograph, picture

SCAN = b"\xff\xda"
END = b"\xff\xd9"


def segment(kind: int, data: bytes) -> bytes:
    return bytes((0xFF, kind)) + (2 + len(data)).to_bytes(2) + data


def test_every_byte_of_a_png_but_its_end_is_under_a_checksum() -> None:
    whole = encoded(photograph(16))
    check_checksums(whole)
    last = whole.rindex(b"IEND") - 4
    for place in range(whole.index(b"IDAT") - 1, last):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        if place in range(whole.index(b"IDAT") - 4, whole.index(b"IDAT")):
            continue  # a length: the chunk may seem to end behind the file, which the decoder refuses
        with pytest.raises(Failing, match=r"a broken image: the checksum of a PNG's chunk .* is wrong"):
            check_checksums(bytes(damaged))


def test_what_is_no_png_or_is_cut_is_left_to_the_decoder() -> None:
    whole = encoded(photograph(16))
    for content in (b"", whole[:8], whole[:40], whole[:-1], encoded(photograph(16), "JPEG")):
        check_checksums(content)
    check_checksums(whole + b"anything")


def test_a_png_of_endless_chunks_is_refused() -> None:
    whole = encoded(photograph(16))
    with pytest.raises(Failing, match="a broken image: a PNG of more than 100000 chunks"):
        check_checksums(whole[:33] + chunk(b"teXt", b"") * 100_000 + whole[33:])


def test_bit_depths_are_those_of_png_files() -> None:
    assert png_bit_depth(encoded(Image.new("1", (8, 8)))) == 1
    assert png_bit_depth(encoded(Image.new("I;16", (8, 8)))) == 16
    assert png_bit_depth(picture(kind="JPEG")) == png_bit_depth(b"") == 8


def test_scans_are_counted_where_the_decoder_meets_them() -> None:
    plain, progressive = (encoded(photograph(64), "JPEG", progressive=one) for one in (False, True))
    assert scans(plain) == 1
    assert scans(progressive) == progressive.count(SCAN) > 5
    hidden = segment(0xE1, (SCAN + END) * 100)
    assert scans(plain[:2] + hidden + plain[2:]) == 1
    assert scans(plain + SCAN * 100) == 1
    first = progressive.index(SCAN)
    second = progressive.index(SCAN, first + 2)
    assert scans(progressive[:second] + hidden + progressive[second:]) == scans(progressive)
    assert scans(b"") == scans(plain[:2]) == scans(encoded(photograph(64))) == 1


def test_endless_scans_and_segments_are_refused() -> None:
    plain = encoded(photograph(64), "JPEG")
    scan = plain[plain.index(SCAN) : -2]
    assert scans(plain[:-2] + scan * (MOST_SCANS - 1) + END) == MOST_SCANS
    with pytest.raises(Failing, match="a broken image: a JPEG of more than 20 scans"):
        scans(plain[:-2] + scan * MOST_SCANS + END)
    with pytest.raises(Failing, match="a broken image: a JPEG of more than 100000 segments"):
        scans(plain[:2] + segment(0xFE, b"") * 100_000 + plain[2:])


def test_sizes_of_webp_files_are_read_from_their_heads() -> None:
    for side, settings in ((33, {}), (47, {"lossless": True}), (21, {"exif": b"Exif\0\0", "lossless": True})):
        assert webp_size(encoded(Image.new("RGB", (side, 2 * side)), "WEBP", **settings)) == (side, 2 * side)
    assert webp_size(b"RIFF") == (0, 0)
