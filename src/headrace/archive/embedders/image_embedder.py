"""Vectors of images: parallel downloads and decoding, overlapped with the encoder.

The encoder's recipe is the file that the settings name, a file beside the encoder, or part of its metadata.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from headrace.archive.embedders.embedder import Embedded, ImageSettings, embed_with_isolation, fingerprint
from headrace.archive.embedders.encoder import Encoder, open_encoder
from headrace.archive.embedders.image_fetching import DownloadLimits, ImageFetcher
from headrace.archive.embedders.text_embedder import normalized
from headrace.base import cpus
from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.tensors import Array
from headrace.config.image_recipe import Recipe
from headrace.config.toml_reader import convert, parse, read_table
from headrace.images.decoding import ImageLimits, decoded, import_pillow
from headrace.images.preparation import input_for, prepared
from headrace.net.allowed_destinations import networks
from headrace.net.content_failures import Failing, Failure
from headrace.net.deadline_connection import Connector, Resolve, system_addresses

_RECIPE_FILE = "encoder.toml"
RECIPE_METADATA = "headrace.encoder"
"""Metadata key under which an ONNX file may hold the text of a recipe."""

_LATER_FIELDS = {"fit": "crop"}
"""Fields of a recipe that older releases lack, with the values that those releases use in their place."""


def read_recipe(named: Path | None, model: Path, metadata: Mapping[str, str]) -> Recipe:
    """Read an encoder's recipe: from the file named, else from beside the encoder, else from its metadata.

    Args:
        named: File that the settings name, or None.
        model: The encoder's file or directory.
        metadata: Metadata of the encoder's file.

    Raises:
        ConfigError: There is no recipe, or it is invalid.
    """
    beside = (model if model.is_dir() else model.parent) / _RECIPE_FILE
    if named is not None or beside.exists():
        file = named or beside
        return convert(read_table(file, f"recipe: {file}"), Recipe, f"recipe: {file}")
    if text := metadata.get(RECIPE_METADATA):
        where = f"the metadata {RECIPE_METADATA} of {model.name}"
        return convert(parse(text, where), Recipe, where)
    raise ConfigError(
        f"recipe: expected a recipe that prepares images for {model.name}, got none; write it to {beside}, "
        "as in size = [224, 224], mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225]"
    )


def described(recipe: Recipe) -> dict[str, object]:
    """Return a recipe's fields for the fingerprint of an embedder.

    A field that older releases lack is omitted if it has the value that they use, so that the fingerprint of
    existing vectors does not change.
    """
    fields = {name: getattr(recipe, name) for name in recipe.__struct_fields__}
    return {name: value for name, value in fields.items() if _LATER_FIELDS.get(name) != value}


_AXES = 2
_Ready = tuple[int, Array | Failure | BaseException]


class ImageEmbedder:
    """Makes vectors of images.

    Attributes:
        dimension: See ``Embedder``.
        fingerprint: See ``Embedder``.
    """

    def __init__(
        self, encoder: Encoder, recipe: Recipe, contents: ImageFetcher, settings: ImageSettings
    ) -> None:
        """Check the encoder with a black image.

        Args:
            encoder: The encoder; ``close`` closes it.
            recipe: How images are prepared for it.
            contents: Fetches the images' bytes.
            settings: Settings of the embedder.

        Raises:
            ConfigError: The encoder and the recipe do not fit together.
        """
        self._encoder = encoder
        self._recipe = recipe
        self._contents = contents
        self._limits = ImageLimits(settings.formats, settings.max_pixels)
        self._input = input_for(recipe, encoder.signature)
        self._normalize = settings.normalize
        self._batch_rows = settings.batch_rows
        # Images fetched but not yet encoded take memory, so limit how many are started ahead.
        self._most_ahead = settings.connections + 2 * settings.batch_rows
        self._decoding = threading.BoundedSemaphore(cpus.available())
        self.dimension = self._probed_dimension()
        told = {
            "recipe": described(recipe),
            "normalize": settings.normalize,
            "output": encoder.output,
        }
        self.fingerprint = fingerprint("image", told, encoder.files)
        self._pool = ThreadPoolExecutor(settings.connections, "headrace-image")

    def embed(self, contents: Sequence[bytes]) -> Embedded:
        """Make a vector of each image; see ``Embedder``.

        Raises:
            ModelError: The encoder fails on every image.
        """
        vectors = np.zeros((len(contents), self.dimension), np.float32)
        failures: dict[int, Failure] = {}
        images: dict[int, Array] = {}

        def batches() -> Iterator[Sequence[int]]:
            for some in self._prepared(contents):
                images.clear()
                for place, made in some:
                    if isinstance(made, Failure):
                        failures[place] = made
                    else:
                        images[place] = made
                if images:
                    yield list(images)

        def encode(places: Sequence[int]) -> None:
            vectors[places] = self._encode(np.stack([images[place] for place in places]))

        failed = embed_with_isolation(batches(), encode, self._probe)
        return Embedded(vectors, failures | failed)

    def close(self) -> None:
        """Cancel pending downloads, wait for those in flight, and free the encoder."""
        self._pool.shutdown(cancel_futures=True)
        self._encoder.close()

    def _prepared(self, contents: Sequence[bytes]) -> Iterator[list[tuple[int, Array | Failure]]]:
        """Yield batches of prepared images in any order, while downloads continue.

        A batch holds the images that are ready; an idle encoder does not wait for a full batch.
        """
        ready: SimpleQueue[_Ready] = SimpleQueue()
        begun: list[Future[None]] = []
        done = 0
        try:
            while done < len(contents):
                for place in range(len(begun), min(done + self._most_ahead, len(contents))):
                    begun.append(self._pool.submit(self._prepare, place, contents[place], ready))
                some = [_made(ready.get())]
                while len(some) < self._batch_rows and not ready.empty():
                    some.append(_made(ready.get()))
                done += len(some)
                yield some
        finally:
            for one in begun:
                one.cancel()

    def _prepare(self, place: int, content: bytes, ready: SimpleQueue[_Ready]) -> None:
        try:
            body = self._contents.get(content)
            with self._decoding:  # decoding takes many times the memory of its result
                image = decoded(body, self._recipe, self._limits)
            ready.put((place, prepared(image, self._recipe, self._input.dtype)))
        except Failing as failing:
            ready.put((place, failing.failure))
        except BaseException as error:  # noqa: BLE001 - re-raised in the thread that waits for it
            ready.put((place, error))

    def _encode(self, images: Array) -> Array:
        made = self._encoder.predict({self._input.name: images})
        return normalized(made) if self._normalize else made

    def _probe(self) -> Array:
        black = np.zeros((*self._recipe.size, self._recipe.channel_count), np.uint8)
        return self._encode(prepared(black, self._recipe, self._input.dtype)[None])

    def _probed_dimension(self) -> int:
        """Encode a black image, and return the length of its vector."""
        try:
            output = self._probe()
        except HeadraceError as error:
            raise ConfigError(f"model: the encoder fails on an image: {error.message}") from error
        if output.ndim != _AXES:
            raise ConfigError(
                f"output: expected rows × numbers, got {self._encoder.output} {list(output.shape)}"
            )
        return int(output.shape[1])


def _made(ready: _Ready) -> tuple[int, Array | Failure]:
    place, made = ready
    if isinstance(made, BaseException):
        raise made
    return place, made


def open_image(settings: ImageSettings, base: Path, resolve: Resolve = system_addresses) -> ImageEmbedder:
    """Load an image encoder.

    Args:
        settings: Settings of the embedder.
        base: Directory that relative paths start from.
        resolve: Function that resolves host names.

    Raises:
        ConfigError: A package or a file is missing, or the encoder and the recipe do not fit together.
        LoadError: The model cannot be loaded.
    """
    import_pillow()
    allowed = networks("allow_networks", settings.allow_networks)
    ca_file = os.fspath(base / settings.ca_file) if settings.ca_file else ""
    connector = Connector(resolve, allowed, ca_file, 2 * settings.connections)
    limits = DownloadLimits(
        settings.hosts, settings.ports, settings.max_bytes, settings.timeout_seconds, settings.max_redirects
    )
    directory = base / settings.directory if settings.directory else None
    if directory is not None and not directory.is_dir():
        raise ConfigError(f"directory: expected a directory, got {directory}")
    model = base / settings.model
    encoder = open_encoder(model, settings.output, settings.threads)
    try:
        recipe = read_recipe(base / settings.recipe if settings.recipe else None, model, encoder.metadata)
        return ImageEmbedder(encoder, recipe, ImageFetcher(limits, connector, directory), settings)
    except BaseException:
        encoder.close()
        raise
