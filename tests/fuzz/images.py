"""Images under fuzzing: what names them or is one, and files of every format, down to an encoder's input."""

from __future__ import annotations

import base64
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from headrace.archive.embedders.image_fetching import DownloadLimits, ImageFetcher
from headrace.config.image_recipe import KNOWN_FORMATS, Recipe
from headrace.images.decoding import ImageLimits, decoded
from headrace.images.preparation import prepared
from headrace.net.content_failures import Failing
from headrace.net.deadline_connection import Connector
from tests.image_encoder import encoded, photograph, picture

_LIMITS = ImageLimits(KNOWN_FORMATS, 1_000_000)
_RECIPES = (
    Recipe(size=(8, 8)),
    Recipe(size=(5, 9), resize=16, filter="bilinear", layout="NHWC", channels="BGR"),
    Recipe(size=(24, 3), filter="lanczos", white=255, std=(0.5, 1.0, 2.0)),
    Recipe(size=(7, 7), fit="stretch", channels="gray", layout="NHW"),
)


class Unexpected(Exception):
    """What no image may cause."""


class Images:
    """Fetches images as an embedder does, but reaches no other machine."""

    def __init__(self) -> None:
        """Write one into a directory that may be read."""
        self._place = tempfile.TemporaryDirectory()
        Path(self._place.name, "a.png").write_bytes(picture())
        limits = DownloadLimits(("*.example",), (80, 443), 2**20, 1.0, 3)
        self._fetcher = ImageFetcher(limits, Connector(_nowhere, (), "", 1), Path(self._place.name))

    def read(self, data: bytes) -> None:
        """The first byte says how the image is prepared; the rest is the image, or names it."""
        if not data:
            return
        recipe = _RECIPES[data[0] % len(_RECIPES)]
        with suppress(Failing):
            self._decode(self._fetcher.get(data[1:]), recipe)

    @staticmethod
    def _decode(content: bytes, recipe: Recipe) -> None:
        try:
            image = decoded(content, recipe, _LIMITS)
        except Failing as failing:
            if failing.__cause__ is not None and _is_of_headrace(failing.__cause__):
                raise Unexpected from failing.__cause__
            return
        if (
            image.shape != (*recipe.size, recipe.channel_count)
            or not np.isfinite(prepared(image, recipe, np.dtype("f4"))).all()
        ):
            raise Unexpected(f"{recipe} made {image.shape}")

    def seeds(self) -> Iterator[bytes]:
        """Images of each format and mode, and names of some."""
        small = photograph(16)
        files = [encoded(small, kind) for kind in KNOWN_FORMATS]
        files += [picture((9,)), picture((9, 8, 7, 6)), picture((9, 8, 7, 6), kind="WEBP")]
        files += [encoded(small.convert(mode)) for mode in ("1", "L", "LA", "P")]
        files.append(encoded(Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 255)))
        files += [encoded(small, "JPEG", progressive=True), encoded(small, "GIF", save_all=True)]
        exif = Image.Exif()
        exif[0x0112] = 6
        files.append(encoded(small, "JPEG", exif=exif))
        names = [b"a.png", b"data:image/png;base64," + base64.b64encode(picture())]
        names += [b"https://a.example:443/x.png?y#z", b"http://user@[::1]:80/", b"data:,%89PNG"]
        for number, one in enumerate([*files, *names]):
            yield bytes((number,)) + one


def _nowhere(host: str, port: int) -> Sequence[str]:
    raise OSError(f"{host}:{port} is not looked up here")


def _is_of_headrace(error: BaseException) -> bool:
    """Whether headrace's code raised it, and not Pillow's, which may raise anything."""
    if error.__traceback__ is None:
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("headrace.")
