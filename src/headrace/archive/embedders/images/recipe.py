"""Recipe: how an image becomes an encoder's input. Stored beside the encoder, or in its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.config.checks import whole, wrong
from headrace.config.toml_reader import convert, parse, read_table
from headrace.model.servable import Signature, TensorSpec

FILE = "encoder.toml"
"""File name of a recipe beside its encoder."""

METADATA = "headrace.encoder"
"""Metadata key under which an ONNX file may hold the text of a recipe."""

_LARGEST_SIDE = 4096
_CHANNELS = 3


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an image is prepared.

    Attributes:
        size: Height and width of the crop from the image's centre.
        resize: Length that the shorter side is resized to before cropping; 0 for the smallest that holds
            ``size``.
        filter: Resampling filter.
        white: Value of a channel at full brightness, before ``mean`` is subtracted: 1 or 255.
        mean: Value subtracted, by channel.
        std: Divisor after subtraction, by channel.
        layout: Whether channels come first (NCHW) or last (NHWC).
        channels: Order of the channels.
    """

    size: tuple[int, int]
    resize: int = 0
    filter: Literal["bilinear", "bicubic", "lanczos", "nearest", "box"] = "bicubic"
    white: float = 1.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    channels: Literal["RGB", "BGR"] = "RGB"

    def __post_init__(self) -> None:
        """Check the settings."""
        for side in self.size:
            whole("size", side, least=1, most=_LARGEST_SIDE)
        whole("resize", self.resize, most=_LARGEST_SIDE)
        if self.resize and self.resize < max(self.size):
            raise wrong("resize", f"at least {max(self.size)}, for size, or 0", self.resize)
        if not 0 < self.white <= 2**16:
            raise wrong("white", "a number above 0 and at most 65536, usually 1 or 255", self.white)
        if not np.isfinite(self.mean).all():
            raise wrong("mean", "finite numbers", self.mean)
        if not all(0 < abs(one) < np.inf for one in self.std):
            raise wrong("std", "finite numbers other than 0", self.std)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image as the encoder takes it."""
        height, width = self.size
        return (_CHANNELS, height, width) if self.layout == "NCHW" else (height, width, _CHANNELS)

    def applied(self, image: Array, dtype: np.dtype[Any]) -> Array:
        """Convert a cropped image to the encoder's input.

        Args:
            image: uint8 ``[height, width, 3]``, red first.
            dtype: Dtype of the encoder's input.

        Returns:
            Array of shape ``shape``.
        """
        made = np.empty(self.shape, np.float32)
        for place in range(_CHANNELS):  # per channel, as NumPy is slow over an axis of three
            source = image[..., place if self.channels == "RGB" else _CHANNELS - 1 - place]
            channel = made[place] if self.layout == "NCHW" else made[..., place]
            np.multiply(source, np.float32(self.white / 255 / self.std[place]), out=channel)
            channel -= np.float32(self.mean[place] / self.std[place])
        return (np.rint(made) if dtype.kind in "iu" else made).astype(dtype, copy=False)


def read_recipe(named: Path | None, model: Path, metadata: Mapping[str, str]) -> Recipe:
    """Read an encoder's recipe: from the file named, else from beside the encoder, else from its metadata.

    Args:
        named: File that the settings name, or None.
        model: The encoder's file or directory.
        metadata: Metadata of the encoder's file.

    Raises:
        ConfigError: There is no recipe, or it is invalid.
    """
    beside = (model if model.is_dir() else model.parent) / FILE
    if named is not None or beside.exists():
        file = named or beside
        return convert(read_table(file, f"recipe: {file}"), Recipe, f"recipe: {file}")
    if text := metadata.get(METADATA):
        where = f"the metadata {METADATA} of {model.name}"
        return convert(parse(text, where), Recipe, where)
    raise ConfigError(
        f"recipe: expected a recipe that prepares images for {model.name}, got none; write it to {beside}, "
        "as in size = [224, 224], mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225]"
    )


def input_for(recipe: Recipe, signature: Signature) -> TensorSpec:
    """Return the input of an encoder that takes images prepared by a recipe.

    Raises:
        ConfigError: The encoder has several inputs, or its input takes something else.
    """
    if len(signature.inputs) == 1:
        (spec,) = signature.inputs
        if spec.dtype.kind in "iuf" and spec.accepts(recipe.shape):
            return spec
    wanted = ", ".join(map(str, ("rows", *recipe.shape)))
    got = "; ".join(map(str, signature.inputs))
    raise ConfigError(f"recipe: it makes images [{wanted}], but the encoder takes {got}")
