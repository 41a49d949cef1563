"""Recipes of images, and the section [image]: what is accepted, and what is said about what is not."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError
from headrace.config import ImageConfig, Recipe, parse_model_config
from headrace.config.toml_reader import convert, parse


def test_one_number_stands_for_all_channels() -> None:
    recipe = Recipe(size=(9, 8), mean=(0.5,), std=(2.0,))
    assert (recipe.mean, recipe.std, recipe.shape) == ((0.5,) * 3, (2.0,) * 3, (3, 9, 8))
    gray = Recipe(size=(9, 8), mean=(0.5,), channels="gray", layout="NHW")
    assert (gray.mean, gray.std, gray.shape) == ((0.5,), (1.0,), (9, 8))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "size"),
        ("size = [0, 1]", "size: expected a whole number, 1 or more"),
        ("size = [9, 9]\nresize = 8", "resize: expected at least 9"),
        ("size = [9, 9]\nresize = 10\nfit = 'stretch'", "resize: expected 0 with fit = stretch"),
        ("size = [9, 9]\nstd = [1, 0, 1]", "std: expected finite numbers other than 0"),
        ("size = [9, 9]\nmean = [nan, 0, 1]", "mean: expected finite numbers"),
        ("size = [9, 9]\nmean = [0, 1]", "mean: expected 1 number or 3, for channels = RGB"),
        ("size = [9, 9]\nstd = [1, 1, 1]\nchannels = 'gray'", "std: expected 1 number or 1"),
        ("size = [9, 9]\nwhite = 0", "white: expected a number above 0"),
        ("size = [9, 9]\nlayout = 'CHW'", "layout: expected one of 'NCHW', 'NHWC', 'NHW'"),
        ("size = [9, 9]\nlayout = 'NHW'", "layout: expected NCHW or NHWC with channels = RGB"),
        ("size = [9, 9]\nfit = 'pad'", "fit: expected one of 'crop', 'stretch'"),
    ],
)
def test_invalid_recipes_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        convert(parse(text, "encoder.toml"), Recipe, "encoder.toml")


def test_a_model_takes_images_as_its_settings_say() -> None:
    text = "[image]\nsize = [28, 28]\nchannels = 'gray'\nlayout = 'NHW'\nname = 'photo'\nformats = ['PNG']"
    config = parse_model_config(text)
    assert config.image == ImageConfig(
        size=(28, 28), channels="gray", layout="NHW", name="photo", formats=("PNG",)
    )
    assert config.changes_inputs
    assert parse_model_config("").image is None
    assert not parse_model_config("").changes_inputs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[image]", "headrace.toml: image: .*size"),
        ("[image]\nsize = [9, 9]\nsizes = 1", r"image.sizes: unknown setting; did you mean size\?"),
        ("[image]\nsize = [9, 9]\nmean = [0, 1]", "headrace.toml: image.mean: expected 1 number or 3"),
        ("[image]\nsize = [9, 9]\nformats = []", "image.formats: expected at least one"),
        ("[image]\nsize = [9, 9]\nformats = ['PDF']", r"image.formats\[0\]: expected one of 'JPEG'"),
        ("[image]\nsize = [9, 9]\nname = ''", "image.name: expected the name of the request's input"),
        ("[image]\nsize = [9, 9]\nmax_bytes = 0", "image.max_bytes: expected a whole number, 1 or more"),
        (
            "[image]\nsize = [9, 9]\nmax_pixels = 99999999999",
            "image.max_pixels: expected a whole number, 1 to",
        ),
        (
            "[image]\nsize = [9, 9]\nmax_pixels = 178956971",  # Pillow would refuse it all the same
            "image.max_pixels: expected a whole number, 1 to 178956970",
        ),
        (
            "[image]\nsize = [9, 9]\nmax_pixels = 1000\nmax_call_pixels = 999",
            "image.max_call_pixels: expected at least max_pixels = 1000, got 999",
        ),
        (
            "[image]\nsize = [9, 9]\n[batching]\npad_variable_length = true",
            r"batching.pad_variable_length: expected false with \[image\]",
        ),
    ],
)
def test_invalid_image_settings_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_model_config(text)
