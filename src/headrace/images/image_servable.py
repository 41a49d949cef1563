"""A model whose requests send image files in place of the numbers that it takes."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np

from headrace.base.errors import ConfigError, InvalidRows, NotLoadable, listed, without_paths
from headrace.base.tensors import STRING, Array, Tensors
from headrace.config.image_recipe import ImageConfig
from headrace.images.decoding import ImageLimits, decoded, import_pillow
from headrace.images.preparation import prepared, shape_of, takes_images
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature, TensorSpec
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
        pixels = np.empty((len(contents), *self._config.shape), self._spec.dtype)
        wrong: dict[int, tuple[str, str]] = {}
        last = None
        for row, content in enumerate(contents.ravel()):
            if content is last:  # a batch is padded with its last row
                pixels[row] = pixels[row - 1]
                continue
            last = content
            try:
                pixels[row] = self._decoded(content)
            except Failing as failing:
                hint = _HINT if content.startswith(_IN_BASE64) else ""
                wrong[row] = (self._config.name, f": {without_paths(failing.message)}{hint}")
                pixels[row] = 0
        if wrong:
            raise InvalidRows.of(wrong)
        return pixels

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
        NotLoadable: There is no such input, several are possible, or it takes something else.
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
        return fitting[0]
    if fitting:
        raise NotLoadable(f"image.input: expected the name of one input, as several fit: {listed(fitting)}")
    raise NotLoadable(
        f"image: size, layout and channels make numbers {shape_of(config)}, but the model takes {there}"
    )
