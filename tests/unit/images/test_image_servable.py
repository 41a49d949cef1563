"""A model that takes images: its signature, its answers, and what it refuses."""

from __future__ import annotations

import base64
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from headrace.base.errors import DeadlineExceeded, InvalidRows, NotLoadable, TooLarge
from headrace.base.tensors import Array
from headrace.config import ImageConfig
from headrace.images import image_servable
from headrace.images.decoding import ImageLimits, decoded
from headrace.images.image_servable import ImageServable, black
from headrace.images.preparation import prepared
from headrace.model.servable import DEADLINE, DEFAULT_SIGNATURE, Servable, Signature, TensorSpec
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.registry import load
from tests.image_classifier import SIDE, brightness
from tests.image_encoder import encoded, photograph, picture, png
from tests.models import Doubling

FLOAT32 = np.dtype(np.float32)
GRAY = ImageConfig(size=(SIDE, SIDE), channels="gray", layout="NHW")


def classifier(directory: Path, content: bytes = b"") -> Servable:
    (directory / "model.onnx").write_bytes(content or brightness())
    return load(directory, RuntimeOptions())


def batch(*contents: bytes) -> dict[str, Array]:
    return {"image": np.array([*contents, None], object)[:-1]}


def test_images_take_the_place_of_their_pixels(tmp_path: Path) -> None:
    servable = ImageServable(classifier(tmp_path), GRAY)
    signature = servable.signatures[DEFAULT_SIGNATURE]
    assert [str(spec) for spec in signature.inputs] == ["image BYTES [rows]"]
    given = servable.predict(batch(picture((255,)), picture((0,)), picture((51,), kind="JPEG")))
    np.testing.assert_allclose(given["probabilities"][:, 1], [1.0, 0.0, 0.2], atol=0.01)
    servable.close()


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((3, SIDE, SIDE), {"mean": (0.5, 0.4, 0.3), "std": (0.2,), "channels": "BGR"}),
        ((SIDE, SIDE, 3), {"layout": "NHWC", "fit": "stretch"}),
        ((1, SIDE, SIDE), {"channels": "gray", "resize": 12}),
    ],
)
def test_answers_are_those_of_the_prepared_pixels(
    tmp_path: Path, shape: tuple[int, ...], settings: dict[str, object]
) -> None:
    config = ImageConfig(size=(SIDE, SIDE), **settings)
    model = classifier(tmp_path, brightness(shape))
    image = encoded(photograph(40).crop((0, 0, 40, 20)))
    pixels = prepared(decoded(image, config, ImageLimits(("PNG",), 10_000)), config, FLOAT32)
    wanted = model.predict({"pixels": pixels[None]})["probabilities"]
    given = ImageServable(model, config).predict(batch(image))["probabilities"]
    np.testing.assert_array_equal(given, wanted)


def test_integer_inputs_get_whole_numbers(tmp_path: Path) -> None:
    config = ImageConfig(size=(SIDE, SIDE), channels="gray", layout="NHW", white=255)
    servable = ImageServable(classifier(tmp_path, brightness(dtype=TensorProto.UINT8)), config)
    assert servable.predict(batch(picture((9,))))["probabilities"].tolist() == [[-8, 9]]


@pytest.mark.parametrize(
    ("dtype", "settings", "got"),
    [
        (TensorProto.INT8, {"white": 255}, "-128 to 127, got 0 to 255; .* mean = .128., std = .1."),
        (TensorProto.UINT8, {"white": 255, "mean": (128,)}, "0 to 255, got -128 to 127; .* mean = .0."),
        (TensorProto.UINT8, {}, "0 to 255, got 0 to 1; "),
    ],
)
def test_integer_inputs_that_cannot_hold_the_numbers_are_refused(
    tmp_path: Path, dtype: int, settings: dict[str, object], got: str
) -> None:
    config = ImageConfig(**settings_of(GRAY), **settings)
    expected = "expected numbers that differ by 2 or more and fit the input pixels"
    with pytest.raises(NotLoadable, match=rf"image\.white, mean, std: {expected} .*{got}"):
        ImageServable(classifier(tmp_path, brightness(dtype=dtype)), config)


def test_images_with_too_many_pixels_in_all_are_refused_before_any_is_decoded(tmp_path: Path) -> None:
    limits = {"max_pixels": 10_000, "max_call_pixels": 20_000}
    servable = ImageServable(classifier(tmp_path), ImageConfig(**settings_of(GRAY), **limits))
    empty = png(100, 100)  # decoding it fails
    with pytest.raises(TooLarge) as caught:
        servable.predict(batch(empty, picture(), b"no image", empty))
    assert caught.value.field == "image"
    assert "expected at most max_call_pixels = 20000 in all images, got 20256" in caught.value.message
    with pytest.raises(InvalidRows, match="row 0: a broken image"):
        servable.predict(batch(empty, empty))
    scanned = encoded(photograph(100), "JPEG", progressive=True)  # 10 scans, which count twice
    assert len(servable.predict(batch(scanned))["probabilities"]) == 1
    with pytest.raises(TooLarge, match=r"got 20256 \(those of a JPEG count once for every five scans\)"):
        servable.predict(batch(scanned, picture()))
    repeated = picture((255,), side=100)
    assert len(servable.predict(batch(*[repeated] * 5))["probabilities"]) == 5


@pytest.fixture
def deadline() -> Iterator[Callable[[float], object]]:
    """Sets how many seconds a call may still take."""
    token = DEADLINE.set(math.inf)
    yield lambda left: DEADLINE.set(time.monotonic() + left)
    DEADLINE.reset(token)


def test_nothing_is_decoded_after_the_deadline(tmp_path: Path, deadline: Callable[[float], object]) -> None:
    servable = ImageServable(classifier(tmp_path), GRAY)
    deadline(1e6)
    assert len(servable.predict(batch(picture()))["probabilities"]) == 1
    deadline(-1)
    with pytest.raises(DeadlineExceeded, match="the deadline passed before all images were decoded"):
        servable.predict(batch(b"broken", picture()))


def test_decoding_stops_when_the_deadline_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Callable[[float], object]
) -> None:
    servable, decoded_sizes = ImageServable(classifier(tmp_path), GRAY), list[int]()
    whole = image_servable.decoded

    def decoded_and_late(content: bytes, *others: Any) -> Array:
        decoded_sizes.append(len(content))
        deadline(-1)
        return whole(content, *others)

    monkeypatch.setattr(image_servable, "decoded", decoded_and_late)
    with pytest.raises(DeadlineExceeded):
        servable.predict(batch(picture(), picture((9,)), picture((8,))))
    assert len(decoded_sizes) == 1


def test_every_wrong_image_is_named_with_its_row(tmp_path: Path) -> None:
    servable = ImageServable(classifier(tmp_path), ImageConfig(**settings_of(GRAY), max_pixels=10_000))
    good, broken, bomb = picture(), encoded(photograph(64), "JPEG")[:400], png(6_000, 6_000)
    with pytest.raises(InvalidRows) as caught:
        servable.predict(batch(good, b"no image", broken, good, bomb))
    error = caught.value
    assert list(error.rows) == [1, 2, 4]
    assert error.message.startswith(
        "image: row 1: not an image: expected JPEG, PNG, WEBP, GIF, got b'no image'"
    )
    assert error.within(0, 1) is None
    assert "row 0: a broken image" in str(error.within(2, 3))
    assert "too large: expected at most max_pixels = 10000, got 6000 × 6000" in str(error.within(4, 5))


def test_large_files_and_other_formats_are_refused(tmp_path: Path) -> None:
    model = classifier(tmp_path)
    small = ImageServable(model, ImageConfig(**settings_of(GRAY), max_bytes=100))
    with pytest.raises(
        InvalidRows, match="row 0: too large: expected at most max_bytes = 100 bytes, got 1000"
    ):
        small.predict(batch(b"x" * 1000))
    jpeg = ImageServable(model, ImageConfig(**settings_of(GRAY), formats=("JPEG",)))
    with pytest.raises(InvalidRows, match="row 0: not an image: expected JPEG"):
        jpeg.predict(batch(picture()))


def test_an_image_in_base64_is_told_how_it_is_sent(tmp_path: Path) -> None:
    servable = ImageServable(classifier(tmp_path), GRAY)
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        text = base64.b64encode(picture(kind=kind))
        for content in (text, b"data:image/png;base64," + text):
            with pytest.raises(InvalidRows, match="it looks like base64: send the bytes themselves"):
                servable.predict(batch(content))


def settings_of(config: ImageConfig) -> dict[str, object]:
    return {"size": config.size, "channels": config.channels, "layout": config.layout}


def test_a_batch_padded_with_its_last_row_decodes_that_row_once(tmp_path: Path) -> None:
    servable = ImageServable(classifier(tmp_path), GRAY)
    last = picture((255,))
    given = servable.predict(batch(picture((0,)), last, last, last))
    np.testing.assert_allclose(given["probabilities"][:, 1], [0, 1, 1, 1])
    with pytest.raises(InvalidRows) as caught:
        servable.predict(batch(last, *[b"broken"] * 3))
    assert caught.value.within(0, 1) is None
    assert caught.value.within(1, 2) is not None


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_generated_requests_contain_an_image_that_is_decoded(tmp_path: Path, kind: str) -> None:
    config = ImageConfig(**settings_of(GRAY), formats=(kind,))
    assert black(config)
    servable = ImageServable(classifier(tmp_path), config)
    sample = servable.signatures[DEFAULT_SIGNATURE].sample
    assert sample is not None
    np.testing.assert_allclose(servable.predict(sample)["probabilities"], [[1, 0]], atol=0.01)


class Pair(Doubling):
    """Has inputs beside the image, one of which may be any."""

    def __init__(self, *others: TensorSpec) -> None:
        super().__init__()
        image = TensorSpec("pixels", FLOAT32, (SIDE, SIDE))
        outputs = (TensorSpec("y", FLOAT32, ()),)
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, (image, *others), outputs),
            "plain": Signature("plain", (TensorSpec("x", FLOAT32, (2,)),), outputs),
        }

    def predict(self, inputs: dict[str, Array], signature: str = DEFAULT_SIGNATURE) -> dict[str, Array]:
        return (
            super().predict(inputs)
            if signature == "plain"
            else {"y": inputs["age"] + inputs["pixels"].mean()}
        )


def test_other_inputs_and_signatures_stay_as_they_are() -> None:
    servable = ImageServable(Pair(TensorSpec("age", FLOAT32, ())), GRAY)
    signature = servable.signatures[DEFAULT_SIGNATURE]
    assert signature.input_names == ("image", "age")
    given = servable.predict({**batch(picture((255,))), "age": np.array([41], np.float32)})
    assert given["y"].tolist() == [42]
    assert signature.sample is not None
    assert servable.predict(signature.sample)["y"].tolist() == [0]
    assert servable.predict({"x": np.ones((1, 2), np.float32)}, "plain")["y"].tolist() == [[2, 2]]
    unknown = ImageServable(Pair(TensorSpec("age", FLOAT32, (None,))), GRAY)
    assert unknown.signatures[DEFAULT_SIGNATURE].sample is None


def test_settings_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    model = classifier(tmp_path)
    same = TensorSpec("more", FLOAT32, (SIDE, SIDE))
    cases = [
        (
            model,
            {"size": (9, 9)},
            r"image: size, .* make numbers \[rows, 9, 9\], but the model takes pixels FP32",
        ),
        (model, {"input": "photo"}, "image.input: expected an input of the model .*pixels.*, got 'photo'"),
        (Pair(same), {}, "image.input: expected the name of one input, as several fit: pixels .*, more"),
        (Pair(TensorSpec("image", FLOAT32, ())), {}, "image.name: expected another name .* got 'image'"),
    ]
    for servable, changed, said in cases:
        with pytest.raises(NotLoadable, match=said):
            ImageServable(servable, ImageConfig(**{**settings_of(GRAY), **changed}))
    assert ImageServable(Pair(same), ImageConfig(**settings_of(GRAY), input="more")).signatures


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(NotLoadable, match=r"image: images need Pillow .*pip install 'headrace\[image\]'"):
        ImageServable(model, GRAY)
