"""Decoded images as a model's input: the input that takes them, and the conversion to its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.config.image_recipe import Recipe
from headrace.model.servable import Signature, TensorSpec


def prepared(image: Array, recipe: Recipe, dtype: np.dtype[Any]) -> Array:
    """Convert a decoded image to a model's input.

    Each channel becomes ``(pixel / 255 * white - mean) / std``.

    Args:
        image: uint8 ``[height, width, channels]``, red first.
        recipe: Scale, layout and order of the channels.
        dtype: Dtype of the model's input; integers are rounded.

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
        ConfigError: The encoder has several inputs, or its input takes something else.
    """
    if len(signature.inputs) == 1 and takes_images(signature.inputs[0], recipe):
        return signature.inputs[0]
    got = "; ".join(map(str, signature.inputs))
    raise ConfigError(f"recipe: it makes images {shape_of(recipe)}, but the encoder takes {got}")


def takes_images(spec: TensorSpec, recipe: Recipe) -> bool:
    """Return whether an input takes the images of a recipe."""
    return spec.dtype.kind in "iuf" and spec.accepts(recipe.shape)


def shape_of(recipe: Recipe) -> str:
    """Return the shape of a batch of images for a message, such as ``[rows, 3, 224, 224]``."""
    return f"[{', '.join(map(str, ('rows', *recipe.shape)))}]"
