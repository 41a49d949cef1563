"""The parts of image files that Pillow does not look at before it decodes, or not at all."""

from __future__ import annotations

import re
import zlib

from headrace.net.content_failures import never

MOST_SCANS = 20
"""Maximum number of scans of a JPEG: each takes few bytes but costs time for all pixels.

Usual are 1 to 10.
"""

_MOST_PARTS = 100_000
"""Maximum number of chunks of a PNG and of segments of a JPEG: each costs time, however short it is."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_LAST = b"IEND"
_PNG_CHUNK_BYTES = 12  # besides the data: their length, the kind, and the checksum
_PNG_BIT_DEPTH = 24  # its place, as the first chunk is IHDR
_JPEG = b"\xff\xd8"
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # ff 00 and ff d0 to ff d7 belong to a scan's data
_JPEG_SCAN, _JPEG_END = b"\xff\xda", b"\xff\xd9"
_WEBP_HEADER_BYTES = 30


def check_checksums(content: bytes) -> None:
    """Reject a PNG file with a wrong checksum; Pillow does not look at those of the pixels.

    Other files, and a PNG that is cut, are left to the decoder.

    Raises:
        Failing: A checksum is wrong, or there are too many chunks.
    """
    if not content.startswith(_PNG):
        return
    view, at = memoryview(content), len(_PNG)
    for _ in range(_MOST_PARTS):
        kind = content[at + 4 : at + 8]
        end = at + _PNG_CHUNK_BYTES + int.from_bytes(content[at : at + 4])
        if end > len(content):
            return
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(content[end - 4 : end]):
            raise never(f"a broken image: the checksum of a PNG's chunk {kind!r} is wrong")
        if kind == _PNG_LAST:
            return
        at = end
    raise never(f"a broken image: a PNG of more than {_MOST_PARTS} chunks")


def png_bit_depth(content: bytes) -> int:
    """Return the number of bits of a sample of a PNG file; 8 for any other file."""
    return content[_PNG_BIT_DEPTH] if content.startswith(_PNG) and len(content) > _PNG_BIT_DEPTH else 8


def scans(content: bytes) -> int:
    """Return the number of times that a decoder goes over the pixels: the scans of a JPEG, else 1.

    Bytes within a segment (a preview, a profile) or after the image (a film) are not counted.

    Raises:
        Failing: There are too many scans or segments.
    """
    if not content.startswith(_JPEG):
        return 1
    at, count = len(_JPEG), 0
    for _ in range(_MOST_PARTS):
        marker = _JPEG_MARKER.search(content, at)
        if marker is None or marker[0] == _JPEG_END:
            return max(count, 1)
        count += marker[0] == _JPEG_SCAN
        if count > MOST_SCANS:
            raise never(f"a broken image: a JPEG of more than {MOST_SCANS} scans")
        at = marker.end()
        at += max(int.from_bytes(content[at : at + 2]), 2)  # a segment's length includes its own 2 bytes
    raise never(f"a broken image: a JPEG of more than {_MOST_PARTS} segments")


def webp_size(content: bytes) -> tuple[int, int]:
    """Return the declared size of a WebP file in pixels; (0, 0) for any other file.

    Pillow allocates memory for the whole image when it opens one.
    """
    if len(content) < _WEBP_HEADER_BYTES or content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        return 0, 0
    kind = content[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(content[24:27], "little"), 1 + int.from_bytes(content[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = (int.from_bytes(content[at : at + 2], "little") for at in (26, 28))
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0
