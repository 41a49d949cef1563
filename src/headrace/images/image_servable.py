"""A model whose requests send image files in place of the numbers that it takes."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from headrace.base.errors import (
    ConfigError,
    DeadlineExceeded,
    InvalidRows,
    NotLoadable,
    TooLarge,
    listed,
    without_paths,
)
from headrace.base.tensors import STRING, Array, Tensors
from headrace.config.image_recipe import ImageConfig
from headrace.images.decoding import ImageLimits, cost, decoded, import_pillow
from headrace.images.preparation import check_range, prepared, shape_of, takes_images
from headrace.model.servable import DEADLINE, DEFAULT_SIGNATURE, Servable, Signature, TensorSpec
from headrace.net.content_failures import Failing

_IN_BASE64 = (b"iVBORw0KGgo", b"/9j/", b"R0lGOD", b"UklGR", b"data:image/")
_HINT = '; it looks like base64: send the bytes themselves, in JSON of TensorFlow Serving as {"b64": "…"}'


class ImageServable:
    """A model behind a decoder of images.

    Attributes:
        platform: Platform of the model.
        signatures: Signatures of the model, with images (BYTES ``[rows]``) in place of their pixels.
        may_block: True: an image may take long to decode, so no batch runs in the serving thread.
        is_native: Whether the model computes without the GIL.
    """

    may_block = True

    def __init__(self, servable: Servable, config: ImageConfig) -> None:
        """Put a decoder in front of a model.

        Args:
            servable: The model; closed with this object.
            config: The section ``[image]`` of its settings.

        Raises:
            NotLoadable: Pillow is not installed, or the model has no input for such images.
        """
        try:
            import_pillow()
        except ConfigError as error:
            raise NotLoadable(f"image: {error.message}") from error
        self._model = servable
        self._config = config
        self._limits = ImageLimits(config.formats, config.max_pixels)
        self._spec = _input(servable.signatures[DEFAULT_SIGNATURE], config)
        self.platform = servable.platform
        self.is_native: bool = getattr(servable, "is_native", False)
        self._with_images = {
            name for name, one in servable.signatures.items() if self._spec.name in one.input_names
        }
        self.signatures: Mapping[str, Signature] = {
            name: self._public(one) if name in self._with_images else one
            for name, one in servable.signatures.items()
        }

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Decode a batch of images, and run the model.

        Args:
            inputs: All inputs of the signature, checked.
            signature: Name of the signature.

        Returns:
            The model's outputs.

        Raises:
            InvalidRows: Images are broken, too large, or of another format; it names all of them.
            TooLarge: The images have too many pixels in all. If the batch holds several requests, each is
                then computed alone, so none fails for the images of its neighbours.
            DeadlineExceeded: The deadline of all requests passed before the images were decoded.
        """
        if signature not in self._with_images:
            return self._model.predict(inputs, signature)
        taken = {name: array for name, array in inputs.items() if name != self._config.name}
        taken[self._spec.name] = self._pixels(inputs[self._config.name])
        return self._model.predict(taken, signature)

    def close(self) -> None:
        """Close the model."""
        self._model.close()

    def _pixels(self, contents: Array) -> Array:
        """Return the model's input for a batch of images; an object that is repeated is decoded once."""
        self._check_cost(contents.ravel())
        pixels = np.empty((len(contents), *self._config.shape), self._spec.dtype)
        wrong: dict[int, tuple[str, str]] = {}
        last = None
        for row, content in enumerate(contents.ravel()):
            if content is last:  # a batch is padded with its last row
                pixels[row] = pixels[row - 1]
                continue
            last = content
            _check_deadline()
            try:
                pixels[row] = self._decoded(content)
            except Failing as failing:
                hint = _HINT if content.startswith(_IN_BASE64) else ""
                wrong[row] = (self._config.name, f": {without_paths(failing.message)}{hint}")
                pixels[row] = 0
        if wrong:
            raise InvalidRows.of(wrong)
        return pixels

    def _check_cost(self, contents: Iterable[bytes]) -> None:
        """Reject images with too many pixels in all, before any is decoded.

        Raises:
            TooLarge: They have too many.
            DeadlineExceeded: The deadline has passed.
        """
        total, last = 0, None
        for content in contents:
            if content is last or len(content) > self._config.max_bytes:
                continue
            last = content
            _check_deadline()
            with suppress(Failing):  # told with its row when it is decoded
                total += cost(content, self._limits)
        most = self._config.max_call_pixels
        if total > most:
            raise TooLarge(
                f"too many pixels: expected at most max_call_pixels = {most} in all images, got {total} "
                "(those of a JPEG count once for every five scans); "
                "send fewer images per request, or smaller ones",
                field=self._config.name,
            )

    def _decoded(self, content: bytes) -> Array:
        if len(content) > self._config.max_bytes:
            at_most = f"at most max_bytes = {self._config.max_bytes} bytes"
            raise Failing(f"too large: expected {at_most}, got {len(content)}", is_final=True)
        return prepared(decoded(content, self._config, self._limits), self._config, self._spec.dtype)

    def _public(self, signature: Signature) -> Signature:
        """Return the signature that requests are checked against.

        Raises:
            NotLoadable: The model has another input of the same name.
        """
        images = TensorSpec(self._config.name, STRING, ())
        inputs = tuple(images if spec.name == self._spec.name else spec for spec in signature.inputs)
        if len({spec.name for spec in inputs}) < len(inputs):
            expected = "another name than the model's other inputs have"
            raise NotLoadable(f"image.name: expected {expected}, got {self._config.name!r}")
        return Signature(
            signature.name,
            inputs,
            signature.outputs,
            kind=signature.kind,
            rows=signature.rows,
            sample=self._sample(signature, inputs),
        )

    def _sample(self, signature: Signature, inputs: tuple[TensorSpec, ...]) -> dict[str, Array] | None:
        """Return a row that the model can answer, with a black image; None if a shape is unknown."""
        sample: dict[str, Array] = {}
        for spec in inputs:
            if spec.name == self._config.name:
                sample[spec.name] = np.array([black(self._config), None], object)[:1]
            elif signature.sample is not None and spec.name in signature.sample:
                sample[spec.name] = signature.sample[spec.name]
            elif None in spec.shape:
                return None
            else:
                none = b"" if spec.dtype == STRING else 0
                sample[spec.name] = np.full((1, *(size or 0 for size in spec.shape)), none, spec.dtype)
        return sample


def _check_deadline() -> None:
    if time.monotonic() > DEADLINE.get():
        raise DeadlineExceeded("the deadline passed before all images were decoded")


def black(config: ImageConfig) -> bytes:
    """Return a black image of a model's size: a PNG file if that is allowed, else of the first format."""
    import PIL.Image  # noqa: PLC0415 - an extra

    file, (height, width) = io.BytesIO(), config.size
    kind = "PNG" if "PNG" in config.formats else config.formats[0]
    PIL.Image.new("L" if config.channels == "gray" else "RGB", (width, height)).save(file, kind)
    return file.getvalue()


def _input(signature: Signature, config: ImageConfig) -> TensorSpec:
    """Return the model's input that the pixels become.

    Raises:
        NotLoadable: There is no such input, several are possible, it takes something else, or the numbers
            do not fit its dtype.
    """
    there = listed(signature.inputs)
    if config.input:
        named = [spec for spec in signature.inputs if spec.name == config.input]
        if not named:
            raise NotLoadable(f"image.input: expected an input of the model ({there}), got {config.input!r}")
    else:
        named = list(signature.inputs)
    fitting = [spec for spec in named if takes_images(spec, config)]
    if len(fitting) == 1:
        try:
            check_range(config, fitting[0])
        except ConfigError as error:
            raise NotLoadable(f"image.{error.message}") from error
        return fitting[0]
    if fitting:
        raise NotLoadable(f"image.input: expected the name of one input, as several fit: {listed(fitting)}")
    raise NotLoadable(
        f"image: size, layout and channels make numbers {shape_of(config)}, but the model takes {there}"
    )
