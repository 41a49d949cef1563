"""Decoded images to the numbers that a model takes."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.config.image_recipe import Recipe
from headrace.images.preparation import input_for, prepared, shape_of
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec

FLOAT32 = np.dtype(np.float32)
IMAGE = np.random.default_rng(1).integers(0, 256, (8, 9, 3)).astype(np.uint8)


def test_numbers_are_as_the_recipe_says() -> None:
    lite = Recipe(size=(8, 9), white=255, mean=(127, 127, 127), std=(128, 128, 128))
    made = prepared(IMAGE, lite, FLOAT32)
    assert made.shape == lite.shape == (3, 8, 9)
    np.testing.assert_allclose(made.transpose(1, 2, 0), (IMAGE - 127.0) / 128.0, atol=1e-6)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    usual = Recipe(size=(8, 9), mean=mean, std=std, layout="NHWC", channels="BGR")
    expected = (IMAGE[..., ::-1] / 255.0 - mean) / std
    np.testing.assert_allclose(prepared(IMAGE, usual, FLOAT32), expected, atol=1e-6)
    plain = Recipe(size=(8, 9), white=255, layout="NHWC")
    np.testing.assert_array_equal(prepared(IMAGE, plain, np.dtype(np.uint8)), IMAGE)


@pytest.mark.parametrize(("layout", "shape"), [("NHW", (8, 9)), ("NCHW", (1, 8, 9)), ("NHWC", (8, 9, 1))])
def test_gray_images_have_one_channel_or_no_such_axis(layout: str, shape: tuple[int, ...]) -> None:
    recipe = Recipe(size=(8, 9), mean=(0.286,), std=(0.353,), layout=layout, channels="gray")
    made = prepared(IMAGE[..., :1], recipe, FLOAT32)
    assert made.shape == recipe.shape == shape
    expected = (IMAGE[..., 0] / 255.0 - 0.286) / 0.353
    np.testing.assert_allclose(made.reshape(8, 9), expected, atol=1e-6)


def test_an_encoder_takes_images_as_its_only_input() -> None:
    recipe = Recipe(size=(8, 9))
    image, other = TensorSpec("image", FLOAT32, (3, None, None)), TensorSpec("age", FLOAT32, ())
    output = TensorSpec("y", FLOAT32, ())
    assert input_for(recipe, Signature(DEFAULT_SIGNATURE, (image,), (output,))) is image
    for inputs in ((image, other), (other,)):
        with pytest.raises(
            ConfigError, match=r"it makes images \[rows, 3, 8, 9\], but the encoder takes .*age"
        ):
            input_for(recipe, Signature(DEFAULT_SIGNATURE, inputs, (output,)))
    assert shape_of(recipe) == "[rows, 3, 8, 9]"
