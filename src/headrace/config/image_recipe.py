"""How images become a model's input: an encoder's recipe, and the section ``[image]`` of a served model."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec
from msgspec.structs import force_setattr

from headrace.base.errors import ConfigError
from headrace.config.checks import whole, wrong

Format = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]

KNOWN_FORMATS: tuple[Format, ...] = get_args(Format)
"""Formats that settings may name, by their names in Pillow."""

FORMATS: tuple[Format, ...] = ("JPEG", "PNG", "WEBP", "GIF")
"""Formats decoded by default."""

MOST_PIXELS = 178_956_970
"""Upper bound for ``max_pixels``: Pillow refuses larger images, whatever the settings say."""

_MOST_CALL_PIXELS = 10**15
_LARGEST_SIDE = 4096
_LARGEST_IMAGE_BYTES = 2**31 - 1


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an image is prepared.

    Attributes:
        size: Height and width of the result.
        fit: For an image with another aspect ratio than ``size``: ``crop`` cuts out its centre, ``stretch``
            distorts it.
        resize: Length that the shorter side is resized to before cropping; 0 for the smallest that holds
            ``size``.
        filter: Resampling filter.
        white: Value of a channel at full brightness, before ``mean`` is subtracted: 1 or 255.
        mean: Value subtracted, by channel; a single number stands for all channels.
        std: Divisor after subtraction, by channel; a single number stands for all channels.
        layout: Whether channels come first (NCHW) or last (NHWC), or a gray image has no such axis (NHW).
        channels: Order of the channels; or ``gray`` for one channel, the brightness.
    """

    size: tuple[int, int]
    fit: Literal["crop", "stretch"] = "crop"
    resize: int = 0
    filter: Literal["bilinear", "bicubic", "lanczos", "nearest", "box"] = "bicubic"
    white: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: Literal["NCHW", "NHWC", "NHW"] = "NCHW"
    channels: Literal["RGB", "BGR", "gray"] = "RGB"

    def __post_init__(self) -> None:
        """Check the settings, and repeat single numbers for all channels."""
        for side in self.size:
            whole("size", side, least=1, most=_LARGEST_SIDE)
        self._check_fit()
        if not 0 < self.white <= 2**16:
            raise wrong("white", "a number above 0 and at most 65536, usually 1 or 255", self.white)
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.channel_count):
                expected = f"1 number or {self.channel_count}, for channels = {self.channels}"
                raise wrong(name, expected, numbers)
            force_setattr(self, name, numbers * (self.channel_count // len(numbers)))
        if not all(map(math.isfinite, self.mean)):
            raise wrong("mean", "finite numbers", self.mean)
        if not all(0 < abs(one) < math.inf for one in self.std):
            raise wrong("std", "finite numbers other than 0", self.std)
        if self.layout == "NHW" and self.channels != "gray":
            raise wrong("layout", f"NCHW or NHWC with channels = {self.channels}", self.layout)

    def _check_fit(self) -> None:
        whole("resize", self.resize, most=_LARGEST_SIDE)
        if self.resize and self.fit == "stretch":
            raise wrong("resize", "0 with fit = stretch, which cuts nothing off", self.resize)
        if self.resize and self.resize < max(self.size):
            raise wrong("resize", f"at least {max(self.size)}, for size, or 0", self.resize)

    @property
    def channel_count(self) -> int:
        """Number of channels."""
        return 1 if self.channels == "gray" else 3

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image as the model takes it."""
        height, width = self.size
        shapes = {
            "NCHW": (self.channel_count, height, width),
            "NHWC": (height, width, self.channel_count),
            "NHW": (height, width),
        }
        return shapes[self.layout]


class ImageConfig(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Images that a served model takes in place of one of its inputs: the recipe, names and limits.

    Attributes:
        name: The request's input that holds the images' bytes.
        input: The model's input that the pixels become; "" for the only one that fits.
        formats: Formats that are decoded.
        max_bytes: Maximum size of an image file in bytes.
        max_pixels: Maximum number of pixels of an image, according to its header.
        max_call_pixels: Maximum number of pixels, according to the headers, of the images of a request that
            are decoded for one call of the model. A JPEG's pixels count once for every five of its scans.
    """

    name: str = "image"
    input: str = ""
    formats: tuple[Format, ...] = FORMATS
    max_bytes: int = 20 * 1024 * 1024
    max_pixels: int = 40_000_000
    max_call_pixels: int = 160_000_000

    def __post_init__(self) -> None:
        """Check the settings; errors name the section."""
        try:
            super().__post_init__()
            self._check_names_and_limits()
        except ConfigError as error:
            raise ConfigError(f"image.{error.message}") from error

    def _check_names_and_limits(self) -> None:
        if not self.name:
            raise wrong("name", "the name of the request's input that holds the images", self.name)
        if not self.formats:
            raise wrong("formats", "at least one", self.formats)
        whole("max_bytes", self.max_bytes, least=1, most=_LARGEST_IMAGE_BYTES)
        whole("max_pixels", self.max_pixels, least=1, most=MOST_PIXELS)
        whole("max_call_pixels", self.max_call_pixels, least=1, most=_MOST_CALL_PIXELS)
        if self.max_call_pixels < self.max_pixels:
            expected = f"at least max_pixels = {self.max_pixels}"
            raise wrong("max_call_pixels", expected, self.max_call_pixels)
