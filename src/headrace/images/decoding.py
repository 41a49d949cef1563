"""Decodes images, with limits checked before anything is decoded."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.config.image_recipe import Recipe
from headrace.net.content_failures import Failing, never

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
"""Formats decoded by default."""

KNOWN_FORMATS = (*FORMATS, "BMP", "TIFF")
"""Formats that the settings may name."""

_MOST_SCANS = 100
"""Maximum number of scans of a progressive JPEG: each takes few bytes but costs time for all pixels."""

_START_OF_SCAN = b"\xff\xda"
_ORIENTATION = 0x0112
_UPRIGHT = 1
_WEBP_HEADER_BYTES = 30
_DRAFT = (
    2  # a JPEG is decoded at its smallest scale with at least this many pixels per needed pixel, per side
)


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of decoding.

    Attributes:
        formats: Allowed formats, by their names in Pillow.
        most_pixels: Maximum number of pixels of an image.
    """

    formats: Sequence[str]
    most_pixels: int


def import_pillow() -> None:
    """Import Pillow.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        import PIL.Image  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(f"images need Pillow ({error}); pip install 'headrace[image]'") from error


def looks_like_image(content: bytes) -> bool:
    """Return whether bytes start like an image file and unlike text."""
    return (
        content.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*"))
        or (content[:4] == b"RIFF" and content[8:12] == b"WEBP")
        or (content[:2] == b"BM" and b"\0" in content[:16])
    )


def decoded(content: bytes, recipe: Recipe, limits: ImageLimits) -> Array:
    """Decode an image, rotate it by its EXIF orientation, and resize it or its centre.

    An animation yields its first frame; transparent pixels become white.

    Args:
        content: Bytes of an image file.
        recipe: Size, resizing, filter, and whether colours are kept.
        limits: Limits of decoding.

    Returns:
        uint8 ``[height, width, channels]``, red first.

    Raises:
        Failing: The content is no image of these formats, is broken, or is too large; always final.
    """
    import PIL.Image  # noqa: PLC0415 - an extra
    from PIL import UnidentifiedImageError  # noqa: PLC0415 - an extra

    check_scans(content)
    check_pixels(webp_size(content), limits.most_pixels)
    try:
        with PIL.Image.open(io.BytesIO(content), formats=tuple(limits.formats)) as image:
            check_pixels(image.size, limits.most_pixels)
            return _prepared(image, recipe)
    except UnidentifiedImageError:
        raise never(f"not an image: expected {', '.join(limits.formats)}, got {content[:12]!r} …") from None
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise never(f"too large: {error}") from error
    except MemoryError as error:
        raise never("too large: not enough memory to decode it") from error
    except Failing:
        raise
    except Exception as error:  # Pillow's decoders may raise anything on broken files
        raise never(f"a broken image: {type(error).__name__}: {error}") from error


def check_scans(content: bytes) -> None:
    """Reject a JPEG with too many scans.

    Raises:
        Failing: The JPEG has too many scans.
    """
    if content.startswith(b"\xff\xd8") and content.count(_START_OF_SCAN) > _MOST_SCANS:
        raise never(f"a broken image: a JPEG of more than {_MOST_SCANS} scans")


def check_pixels(size: tuple[int, int], most: int) -> None:
    """Reject an image by its declared size, before memory is allocated for it.

    Raises:
        Failing: The image is too large.
    """
    width, height = size
    if width * height > most:
        raise never(f"too large: expected at most max_pixels = {most}, got {width} × {height}")


def webp_size(content: bytes) -> tuple[int, int]:
    """Return the declared size of a WebP file in pixels; (0, 0) for any other file.

    Older versions of Pillow allocate memory for the whole image when they open one.
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


def _prepared(image: Image, recipe: Recipe) -> Array:
    from PIL.Image import Resampling  # noqa: PLC0415 - an extra

    orientation = _orientation(image)
    needed = _DRAFT * (recipe.resize or max(recipe.size))
    mode = "L" if recipe.channels == "gray" else "RGB"
    image.draft(mode, (needed, needed))
    pixels = _turned(_opaque(image, mode), orientation)
    box = centre(pixels.size, recipe)
    height, width = recipe.size
    if pixels.size != (width, height) or box != (0, 0, width, height):
        pixels = pixels.resize((width, height), Resampling[recipe.filter.upper()], box)
    return np.asarray(pixels, np.uint8).reshape(height, width, recipe.channel_count)


def centre(size: tuple[int, int], recipe: Recipe) -> tuple[float, float, float, float]:
    """Return the box of an image to resize for the encoder; cropping first saves resizing the rest.

    Args:
        size: Width and height of the image.
        recipe: Size and resizing.

    Returns:
        Left, top, right and bottom, in the image's pixels.
    """
    if recipe.fit == "stretch":
        return 0, 0, *size
    height, width = recipe.size
    scale = min(size) / recipe.resize if recipe.resize else min(size[0] / width, size[1] / height)
    wide, high = min(width * scale, size[0]), min(height * scale, size[1])
    left, top = (size[0] - wide) / 2, (size[1] - high) / 2
    return left, top, left + wide, top + high


def _orientation(image: Image) -> int:
    try:
        found = image.getexif().get(_ORIENTATION, _UPRIGHT)
    except Exception:  # noqa: BLE001 - Pillow may raise anything; bad EXIF data does not make a bad image
        return _UPRIGHT
    return found if isinstance(found, int) else _UPRIGHT


def _turned(image: Image, orientation: int) -> Image:
    if orientation == _UPRIGHT:
        return image
    from PIL.Image import Transpose  # noqa: PLC0415 - an extra

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = turns.get(orientation)
    return image if turn is None else image.transpose(turn)


def _opaque(image: Image, mode: str) -> Image:
    """Convert an image to a mode without transparency, on a white background."""
    import PIL.Image  # noqa: PLC0415 - an extra

    if image.mode.startswith("I"):  # Pillow would clip 16-bit values at 255
        numbers = np.clip(np.asarray(image), 0, 0xFFFF).astype(np.uint16)
        return PIL.Image.fromarray((numbers >> 8).astype(np.uint8)).convert(mode)
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        drawn = image.convert("RGBA")
        white = PIL.Image.new("RGBA", drawn.size, (255, 255, 255, 255))
        return PIL.Image.alpha_composite(white, drawn).convert(mode)
    return image if image.mode == mode else image.convert(mode)  # which would copy it
