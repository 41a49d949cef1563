"""Image files to pixels, and to what an encoder takes."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from headrace.config.image_recipe import FORMATS, Recipe
from headrace.images.decoding import ImageLimits, centre, cost, decoded
from headrace.images.file_parts import MOST_SCANS, scans
from headrace.net.content_failures import Failing
from tests.image_encoder import chunk, encoded, photograph, picture, png

SMALL = Recipe(size=(8, 8))
LIMITS = ImageLimits(FORMATS, 1_000_000)


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_gives_its_colours(kind: str) -> None:
    made = decoded(picture((250, 10, 10), kind=kind), SMALL, LIMITS)
    assert made.shape == (8, 8, 3)
    assert np.abs(made.astype(int) - (250, 10, 10)).max() < 12


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_is_turned_as_it_was_taken(orientation: int) -> None:
    image = Image.new("RGB", (16, 8), "black")
    image.paste("white", (0, 0, 4, 4))
    turned = np.asarray(image)  # what EXIF's numbers mean, in NumPy
    back = {
        1: turned,
        2: turned[:, ::-1],
        3: turned[::-1, ::-1],
        4: turned[::-1],
        5: turned.transpose(1, 0, 2),
        6: turned.transpose(1, 0, 2)[::-1],
        7: turned[::-1, ::-1].transpose(1, 0, 2),
        8: turned.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(Image.fromarray(np.ascontiguousarray(back)), "PNG", exif=exif)
    made = decoded(file, Recipe(size=(8, 16)), LIMITS)
    np.testing.assert_array_equal(made, turned)


def test_a_tiff_is_turned_once() -> None:
    image = Image.new("RGB", (8, 8), "black")
    image.paste("white", (0, 0, 4, 4))
    file = encoded(image, "TIFF", tiffinfo={0x0112: 6})
    made = decoded(file, SMALL, ImageLimits(("TIFF",), 1000))
    np.testing.assert_array_equal(made, image.transpose(Image.Transpose.ROTATE_270))


def test_the_centre_is_resized_as_pillow_resizes_the_whole() -> None:
    image = photograph(300).crop((0, 0, 300, 240))
    made = decoded(encoded(image), Recipe(size=(224, 224), resize=256), LIMITS)
    whole = image.resize((320, 256), Image.Resampling.BICUBIC).crop((48, 16, 272, 240))
    assert np.abs(made.astype(int) - np.asarray(whole)).mean() < 1


def test_the_centre_lies_within_the_image() -> None:
    assert centre((100, 50), Recipe(size=(10, 10))) == (25, 0, 75, 50)
    assert centre((100, 50), Recipe(size=(10, 10), resize=20)) == (37.5, 12.5, 62.5, 37.5)
    assert centre((1, 1000), Recipe(size=(224, 224), resize=256)) == pytest.approx(
        (0.0625, 499.5625, 0.9375, 500.4375)
    )


def test_large_jpegs_are_decoded_small_and_look_the_same() -> None:
    image = photograph(1024).resize((3000, 3000))
    limits = ImageLimits(FORMATS, 10_000_000)
    small = decoded(encoded(image, "JPEG", quality=95), Recipe(size=(224, 224)), limits)
    large = decoded(encoded(image, "PNG"), Recipe(size=(224, 224)), limits)
    assert np.abs(small.astype(int) - large).mean() < 4


def test_an_image_of_another_shape_is_stretched_to_the_size() -> None:
    image = photograph(64).crop((0, 0, 64, 32))
    made = decoded(encoded(image), Recipe(size=(16, 16), fit="stretch"), LIMITS)
    np.testing.assert_array_equal(made, image.resize((16, 16), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_gray_image_has_one_channel(kind: str) -> None:
    recipe = Recipe(size=(16, 16), channels="gray")
    made = decoded(picture((200, 30, 90), kind=kind), recipe, LIMITS)
    assert made.shape == (16, 16, 1)
    assert np.abs(made.astype(int) - 88).max() < 6  # 0.299 × 200 + 0.587 × 30 + 0.114 × 90
    assert (decoded(picture((77,)), recipe, LIMITS) == 77).all()
    assert (decoded(picture((10, 20, 30, 0)), recipe, LIMITS) == 255).all()


def test_what_is_transparent_is_white() -> None:
    made = decoded(picture((10, 20, 30, 0)), SMALL, LIMITS)
    assert (made == 255).all()
    palette = Image.new("P", (16, 16), 1)
    palette.putpalette([0, 0, 0, 200, 0, 0])
    assert (decoded(encoded(palette, transparency=1), SMALL, LIMITS) == 255).all()
    assert (decoded(encoded(palette), SMALL, LIMITS) == (200, 0, 0)).all()


@pytest.mark.parametrize(("depth", "kind"), [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (8, 2), (16, 2)])
def test_a_transparent_colour_of_any_depth_is_white(depth: int, kind: int) -> None:
    channels, sample = (3 if kind else 1), 1 if depth < 16 else 0x0110
    row = b"\0" + np.full(64 * channels, sample, ">u2").tobytes()
    if depth <= 8:
        bits = np.unpackbits(np.full((64 * channels, 1), sample, np.uint8), axis=1)[:, 8 - depth :]
        row = b"\0" + np.packbits(bits).tobytes()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, depth, kind, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(row * 64)) + chunk(b"IEND", b"")
    drawn = decoded(b"\x89PNG\r\n\x1a\n" + head + data, SMALL, LIMITS)
    assert (drawn == round(sample * 255 / (2**depth - 1))).all()
    for number, wanted in ((sample, 255), (0, drawn[0, 0, 0])):
        colour = chunk(b"tRNS", struct.pack(">H", number) * channels)
        assert (decoded(b"\x89PNG\r\n\x1a\n" + head + colour + data, SMALL, LIMITS) == wanted).all()


def test_numbers_of_16_bits_keep_their_brightness() -> None:
    image = Image.fromarray(np.full((16, 16), 0x8000, np.uint16))
    assert (decoded(encoded(image), SMALL, LIMITS) == 128).all()


def test_grey_and_cmyk_become_red_green_and_blue() -> None:
    assert (decoded(picture((100,)), SMALL, LIMITS) == 100).all()
    cmyk = encoded(Image.new("CMYK", (16, 16), (0, 0, 0, 0)), "JPEG")
    assert (decoded(cmyk, SMALL, LIMITS) > 250).all()


def test_a_moving_image_is_its_first_picture() -> None:
    pictures = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        file = encoded(pictures[0], kind, save_all=True, append_images=pictures[1:], duration=10)
        assert np.abs(decoded(file, SMALL, LIMITS).astype(int) - (255, 0, 0)).max() < 12


# ---- What is refused -------------------------------------------------------------------------------


def webp(width: int, height: int) -> bytes:
    head = b"\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", len(head)) + head
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif(width: int, height: int) -> bytes:
    """A screen of one pixel, and a picture that is larger."""
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return screen + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\x00;"


def reason(content: bytes, limits: ImageLimits = LIMITS) -> str:
    with pytest.raises(Failing) as caught:
        decoded(content, SMALL, limits)
    assert caught.value.failure.is_final
    return caught.value.message


@pytest.mark.parametrize(
    "bomb",
    [
        png(60_000, 60_000, zlib.compress(b"\0" * 1_000_000)),
        png(2**31 - 1, 2**31 - 1),
        webp(16_383, 16_383),
        webp(2**24, 2**24),
        gif(60_000, 60_000),
        gif(2_000, 2_000),
        encoded(Image.new("L", (1001, 1000)), "JPEG"),
    ],
    ids=["png", "largest png", "webp", "largest webp", "gif", "small gif", "one row more"],
)
def test_pixel_bombs_are_refused_by_what_they_say(bomb: bytes) -> None:
    assert reason(bomb).startswith("too large: ")


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    image = encoded(photograph(64), "JPEG", progressive=True)
    head, scan = image[:-2], image[image.rindex(b"\xff\xda") : -2]
    more = MOST_SCANS - scans(image)
    assert decoded(head + scan * more + b"\xff\xd9", SMALL, LIMITS).shape == (8, 8, 3)
    for count in (more + 1, 1000):
        told = reason(head + scan * count + b"\xff\xd9")
        assert told == "a broken image: a JPEG of more than 20 scans"


@pytest.mark.parametrize("kind", FORMATS)
def test_every_cut_and_every_damage_is_an_image_or_a_reason(kind: str) -> None:
    whole = encoded(photograph(64), kind)
    random = np.random.default_rng(7)
    for cut in range(0, len(whole), max(1, len(whole) // 60)):
        try_one(whole[:cut])
    for _ in range(200):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), 8):
            damaged[place] = random.integers(0, 256)
        try_one(bytes(damaged))


@pytest.mark.parametrize("level", [0, 6])
def test_a_damaged_png_is_refused_or_has_the_right_pixels(level: int) -> None:
    random = np.random.default_rng(3)
    recipe, refused = Recipe(size=(64, 64)), 0
    for image in (photograph(64), Image.linear_gradient("L").resize((64, 64))):
        whole = encoded(image, compress_level=level)
        right = decoded(whole, recipe, LIMITS)
        for place in random.integers(8, len(whole), 150):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << random.integers(8)
            try:
                np.testing.assert_array_equal(decoded(bytes(damaged), recipe, LIMITS), right)
            except Failing:
                refused += 1
    assert refused > 250


def test_a_png_whose_data_end_early_is_refused() -> None:
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (64, 64), np.uint8))
    data = zlib.compress(b"".join(b"\0" + bytes(row) for row in np.asarray(image)))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 0, 0, 0, 0))
    for wrong in (data[: len(data) // 2], data[:1000] + bytes(100) + data[1100:]):
        file = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", wrong) + chunk(b"IEND", b"")
        assert reason(file).startswith("a broken image: ")


def try_one(content: bytes) -> None:
    with suppress(Failing):
        assert decoded(content, SMALL, LIMITS).shape == (8, 8, 3)


def test_only_listed_formats_are_decoded() -> None:
    assert reason(encoded(photograph(16), "BMP")).startswith(
        "not an image: expected JPEG, PNG, WEBP, GIF, got b'BM"
    )
    assert decoded(encoded(photograph(16), "BMP"), SMALL, ImageLimits(("BMP",), 1000)).shape == (8, 8, 3)
    assert "not an image" in reason(b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    assert "not an image" in reason(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n")
    assert "not an image" in reason(b"")


# ---- What it costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_an_image_costs_the_pixels_of_its_header(kind: str) -> None:
    whole = encoded(Image.new("RGB", (40, 30)), kind)
    assert cost(whole, LIMITS) == 1200
    with pytest.raises(Failing, match="too large: expected at most max_pixels = 1000, got 40 × 30"):
        cost(whole, ImageLimits(FORMATS, 1000))
    with pytest.raises(Failing, match="not an image: expected BMP"):
        cost(whole, ImageLimits(("BMP",), 2000))


def test_a_jpeg_costs_its_pixels_once_for_every_five_scans() -> None:
    whole = encoded(photograph(64), "JPEG", progressive=True)
    assert whole.count(b"\xff\xda") == 10
    assert cost(whole, LIMITS) == 2 * 64 * 64
