"""Decoded images to the numbers that a model takes."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.config.image_recipe import Recipe
from headrace.images.preparation import check_range, input_for, prepared, shape_of
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


GOOD_RANGES = [
    ("u1", 255, 0, 1),
    ("u1", 1, 0, 1 / 255),
    ("u1", 1, 0, 0.00392),
    ("i1", 255, 128, 1),
    ("i1", 255, 127.5, -1.0039),
    ("i1", 2, 0, 1),
    ("i4", 65536, 0, 1),
    ("f4", 1, 0, 1),
]


@pytest.mark.parametrize(("dtype", "white", "mean", "std"), GOOD_RANGES)
def test_numbers_in_the_range_of_a_dtype_keep_their_order(
    dtype: str, white: float, mean: float, std: float
) -> None:
    recipe = Recipe(size=(1, 256), white=white, mean=(mean,), std=(std,), channels="gray", layout="NHW")
    spec = TensorSpec("x", np.dtype(dtype), (1, 256))
    check_range(recipe, spec)
    levels = np.arange(256, dtype=np.uint8).reshape(1, 256, 1)
    steps = np.diff(prepared(levels, recipe, spec.dtype)[0].astype(float)) * np.sign(std)
    assert (steps >= 0).all()
    assert steps.any()


BAD_RANGES = [
    ("u1", 255, (128,), (1,), "0 to 255, got -128 to 127"),
    ("u1", 255, (0, 0, 1), (1,), "0 to 255, got -1 to 254"),
    ("u1", 255, (0,), (-1,), "0 to 255, got -255 to 0"),
    ("i1", 255, (0,), (1,), "-128 to 127, got 0 to 255"),
    ("i1", 255, (127,), (1,), "-128 to 127, got -127 to 128"),
    ("i1", 255, (127.5,), (1,), "-128 to 127, got -127.5 to 127.5"),
    ("u1", 1, (0,), (1,), "0 to 255, got 0 to 1"),
    ("i4", 1, (0.5,), (0.51,), "got -0.980392 to 0.980392"),
]


@pytest.mark.parametrize(("dtype", "white", "mean", "std", "said"), BAD_RANGES)
def test_numbers_that_an_input_of_integers_cannot_tell_apart_are_refused(
    dtype: str, white: float, mean: tuple[float, ...], std: tuple[float, ...], said: str
) -> None:
    recipe = Recipe(size=(8, 9), white=white, mean=mean, std=std)
    spec = TensorSpec("x", np.dtype(dtype), (3, 8, 9))
    with pytest.raises(ConfigError, match=f"^white, mean, std: expected numbers .*{said}; for all 256"):
        check_range(recipe, spec)
    with pytest.raises(ConfigError, match=r"^recipe: white, mean, std: expected numbers"):
        input_for(recipe, Signature(DEFAULT_SIGNATURE, (spec,), ()))


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
