"""Decoded images as a model's input: the input that takes them, and the conversion to its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.config.image_recipe import Recipe
from headrace.model.servable import Signature, TensorSpec

_LEAST_RANGE = 2
"""Smaller ranges of integers are a mistake: the numbers would be 0 and 1, and an image black and white."""

_SLACK = 0.25
"""Excess over an integer's range that rounding removes: std = 0.00392 stands for 1 / 255."""


def prepared(image: Array, recipe: Recipe, dtype: np.dtype[Any]) -> Array:
    """Convert a decoded image to a model's input.

    Each channel becomes ``(pixel / 255 * white - mean) / std``.

    Args:
        image: uint8 ``[height, width, channels]``, red first.
        recipe: Scale, layout and order of the channels.
        dtype: Dtype of the model's input. Integers are rounded to the nearest, as in quantization; halves to
            the even one. ``check_range`` has found that the numbers fit.

    Returns:
        Array of shape ``recipe.shape``.
    """
    made = np.empty(recipe.shape, np.float32)
    count = recipe.channel_count
    for place in range(count):  # per channel, as NumPy is slow over an axis of three
        source = image[..., count - 1 - place if recipe.channels == "BGR" else place]
        channel = made[..., place] if recipe.layout == "NHWC" else made.reshape(count, *recipe.size)[place]
        np.multiply(source, np.float32(recipe.white / 255 / recipe.std[place]), out=channel)
        channel -= np.float32(recipe.mean[place] / recipe.std[place])
    return (np.rint(made) if dtype.kind in "iu" else made).astype(dtype, copy=False)


def input_for(recipe: Recipe, signature: Signature) -> TensorSpec:
    """Return the input of an encoder that takes images prepared by a recipe.

    Raises:
        ConfigError: The encoder has several inputs, its input takes something else, or the numbers do not
            fit its dtype.
    """
    if len(signature.inputs) == 1 and takes_images(signature.inputs[0], recipe):
        try:
            check_range(recipe, signature.inputs[0])
        except ConfigError as error:
            raise ConfigError(f"recipe: {error.message}") from error
        return signature.inputs[0]
    got = "; ".join(map(str, signature.inputs))
    raise ConfigError(f"recipe: it makes images {shape_of(recipe)}, but the encoder takes {got}")


def check_range(recipe: Recipe, spec: TensorSpec) -> None:
    """Check that an input of integers can hold the numbers of a recipe, and tells dark from bright.

    Raises:
        ConfigError: A number from ``(0 - mean) / std`` to ``(white - mean) / std`` would not fit, or they are
            so close that each would become one of two integers.
    """
    if spec.dtype.kind not in "iu":
        return
    least, most = np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max
    for mean, std in zip(recipe.mean, recipe.std, strict=True):
        low, high = sorted((0.0 - mean / std, (recipe.white - mean) / std))
        fits = least - _SLACK <= low and high <= most + _SLACK
        if not fits or high - low < _LEAST_RANGE:
            offset = 128 if least < 0 else 0
            raise ConfigError(
                f"white, mean, std: expected numbers that differ by {_LEAST_RANGE} or more and fit the input "
                f"{spec}, {least} to {most}, got {low:g} to {high:g}; for all 256 levels of brightness set "
                f"white = 255, mean = [{offset}], std = [1]"
            )


def takes_images(spec: TensorSpec, recipe: Recipe) -> bool:
    """Return whether an input takes the images of a recipe."""
    return spec.dtype.kind in "iuf" and spec.accepts(recipe.shape)


def shape_of(recipe: Recipe) -> str:
    """Return the shape of a batch of images for a message, such as ``[rows, 3, 224, 224]``."""
    return f"[{', '.join(map(str, ('rows', *recipe.shape)))}]"
