"""Decodes images, with limits checked before anything is decoded."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.config.image_recipe import Recipe
from headrace.images.file_parts import check_checksums, png_bit_depth, scans, webp_size
from headrace.net.content_failures import Failing, never

if TYPE_CHECKING:
    from PIL.Image import Image

_ORIENTATION = 0x0112
_UPRIGHT = 1
_BITS = 8
_SCANS_OF_ONE_PASS = 5  # scans of a JPEG that take about as long as decoding a PNG of its size
_WHITE_16 = 0xFFFF
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


def cost(content: bytes, limits: ImageLimits) -> int:
    """Return the number of pixels that decoding goes over, according to the file's header.

    The pixels of a JPEG count once for every five of its scans, but at least once.

    Args:
        content: Bytes of an image file.
        limits: Limits of decoding.

    Raises:
        Failing: As for ``decoded``, for reasons that the header shows.
    """
    width, height = webp_size(content)
    if width and "WEBP" in limits.formats:  # opening one would allocate memory for all pixels
        check_pixels((width, height), limits.most_pixels)
        return width * height
    with _opened(content, limits) as image:
        return image.width * image.height * max(scans(content), _SCANS_OF_ONE_PASS) // _SCANS_OF_ONE_PASS


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
    with _opened(content, limits) as image:
        return _prepared(image, png_bit_depth(content), recipe)


@contextmanager
def _opened(content: bytes, limits: ImageLimits) -> Iterator[Image]:
    """Open an image whose header is within the limits; all errors inside become ``Failing``."""
    import PIL.Image  # noqa: PLC0415 - an extra
    from PIL import UnidentifiedImageError  # noqa: PLC0415 - an extra

    scans(content)
    check_checksums(content)
    check_pixels(webp_size(content), limits.most_pixels)
    try:
        with PIL.Image.open(io.BytesIO(content), formats=tuple(limits.formats)) as image:
            check_pixels(image.size, limits.most_pixels)
            yield image
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


def check_pixels(size: tuple[int, int], most: int) -> None:
    """Reject an image by its declared size, before memory is allocated for it.

    Raises:
        Failing: The image is too large.
    """
    width, height = size
    if width * height > most:
        raise never(f"too large: expected at most max_pixels = {most}, got {width} × {height}")


def _prepared(image: Image, bit_depth: int, recipe: Recipe) -> Array:
    from PIL.Image import Resampling  # noqa: PLC0415 - an extra

    needed = _DRAFT * (recipe.resize or max(recipe.size))
    mode = "L" if recipe.channels == "gray" else "RGB"
    image.draft(mode, (needed, needed))
    image.load()  # first, as reading the EXIF data may load, and a failure would pass for one of those data
    pixels = _turned(_opaque(image, mode, bit_depth), _orientation(image))
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


def _opaque(image: Image, mode: str, bit_depth: int) -> Image:
    """Convert an image to a mode without transparency, on a white background."""
    import PIL.Image  # noqa: PLC0415 - an extra

    transparent = image.info.get("transparency")
    if image.mode.startswith("I"):  # Pillow would clip 16-bit values at 255
        numbers = np.clip(np.asarray(image), 0, _WHITE_16).astype(np.uint16)
        if isinstance(transparent, int):
            numbers[numbers == transparent] = _WHITE_16
        return PIL.Image.fromarray((numbers >> 8).astype(np.uint8)).convert(mode)
    if "A" in image.mode or "a" in image.mode or transparent is not None:
        if bit_depth != _BITS and image.mode in {"L", "RGB"}:
            image.info["transparency"] = _in_8_bits(transparent, bit_depth)
        drawn = image.convert("RGBA")
        white = PIL.Image.new("RGBA", drawn.size, (255, 255, 255, 255))
        return PIL.Image.alpha_composite(white, drawn).convert(mode)
    return image if image.mode == mode else image.convert(mode)  # which would copy it


def _in_8_bits(colour: Any, bit_depth: int) -> Any:
    """Return the transparent colour of a PNG, one sample or three, as Pillow decodes pixels of it.

    Pillow keeps the upper 8 of 16 bits, so colours that differ only in the lower ones are transparent, too.
    """
    if isinstance(colour, tuple):
        return tuple(_in_8_bits(sample, bit_depth) for sample in colour)
    if not isinstance(colour, int):
        return colour
    most = (1 << bit_depth) - 1
    return colour >> (bit_depth - _BITS) if bit_depth > _BITS else (colour & most) * 255 // most
