"""Embedder: makes vectors of contents. The contract of all kinds, and their settings.

The settings are the ``[embedders.NAME]`` tables of ``archive.toml``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from headrace.base.errors import ConfigError, InvalidRequest, ModelError
from headrace.base.files import open_file
from headrace.base.tensors import Array
from headrace.config.checks import DAY, MOST_THREADS, seconds, whole, wrong
from headrace.config.image_recipe import FORMATS, MOST_PIXELS, Format
from headrace.net.content_failures import Failure

# Fingerprints: one digest of all files and settings that determine vectors.


def fingerprint(kind: str, settings: Mapping[str, object], files: Iterable[Path]) -> str:
    """Return a digest of everything that determines vectors.

    The digest depends on the order of files, not on their location or names.

    Args:
        kind: Kind of embedder.
        settings: JSON-compatible settings that change vectors.
        files: Files that the embedder reads.

    Returns:
        64 hexadecimal digits.

    Raises:
        ConfigError: A file cannot be read.
    """
    told = {"kind": kind, "settings": settings, "files": [_digest(file) for file in files]}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _digest(file: Path) -> str:
    try:
        with open_file(file) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error


# Isolate failures of an encoder: a content that fails does not fail its batch.


def embed_with_isolation(
    runs: Iterable[Sequence[int]], encode: Callable[[Sequence[int]], object], probe: Callable[[], object]
) -> dict[int, Failure]:
    """Encode contents in batches. If a batch fails, encode its contents one by one.

    Args:
        runs: Batches, each with the indices of its contents.
        encode: Encodes the contents with some indices.
        probe: Encodes an input that has worked before; called if nothing else succeeds.

    Returns:
        The contents that fail alone, by index.

    Raises:
        ModelError: Everything fails, including the probe, so no content is at fault.
    """
    failures: dict[int, Failure] = {}
    worked, last = False, None
    for run in runs:
        try:
            encode(run)
            worked = True
        except (ModelError, InvalidRequest) as error:
            last = error
            failures |= _one_by_one(run, encode, error)
            worked = worked or any(place not in failures for place in run)
    if last is not None and not worked:
        try:
            probe()
        except (ModelError, InvalidRequest) as error:
            raise ModelError(f"the encoder fails on every input: {error.message}") from last
    return failures


def _one_by_one(
    run: Sequence[int], encode: Callable[[Sequence[int]], object], error: ModelError | InvalidRequest
) -> dict[int, Failure]:
    if len(run) == 1:
        return {run[0]: Failure(f"the encoder fails: {error.message}", is_final=True)}
    failures = {}
    for place in run:
        try:
            encode([place])
        except (ModelError, InvalidRequest) as alone:
            failures[place] = Failure(f"the encoder fails: {alone.message}", is_final=True)
    return failures


@dataclass(frozen=True, slots=True)
class Embedded:
    """The result of embedding a batch of contents.

    Attributes:
        vectors: float32 ``[contents, dimension]``; the rows of failed contents are undefined.
        failures: Failures of items without a vector, by index.
    """

    vectors: Array
    failures: Mapping[int, Failure] = field(default_factory=dict)


class Embedder(Protocol):
    """Makes vectors of contents. Thread-safe.

    Attributes:
        dimension: Length of a vector.
        fingerprint: Digest of all files and settings that determine the vectors. Equal fingerprints mean
            equal vectors wherever they are made, up to float32 rounding.
    """

    dimension: int
    fingerprint: str

    def embed(self, contents: Sequence[bytes]) -> Embedded:
        """Make a vector of each item.

        An item that cannot be embedded does not fail the batch.

        Args:
            contents: One or more items: texts in UTF-8, URLs, or whatever the kind takes.

        Raises:
            Refused: Nothing could be embedded now; a retry may succeed.
            HeadraceError: The encoder itself is broken; no item is at fault.
        """

    def close(self) -> None:
        """Free all resources; called once, when the embedder is no longer used."""


MINILM = "minilm"
"""The name of the built-in text encoder."""

_MOST_TOKENS = 8192
_MOST_PORTS = 65_535
_LARGEST_DOWNLOAD_BYTES = 2**31 - 1
_MOST_REDIRECTS = 20
_MOST_BATCH_ROWS = 1024
_LARGEST_VERSION = 2**63 - 1


class EmbedderSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """Settings common to all kinds of embedder."""


class TextSettings(EmbedderSettings, frozen=True, tag="text"):
    """An embedder of texts: an encoder and its tokenizer.

    Attributes:
        model: ``minilm``, which is installed from a package; an ONNX file; or a directory that some runtime
            loads. A relative path starts from the directory of ``archive.toml``.
        tokenizer: Path of a ``tokenizer.json``; "" for the one beside the model.
        max_tokens: Number of tokens that texts are truncated to, including those for start and end.
        pooling: How the vectors of tokens become one: ``mean``, ``first``, or ``max`` of each element;
            ``none`` if the model returns one vector per text; "" to choose ``mean`` or ``none`` by the
            output's axes.
        normalize: Whether vectors are scaled to length 1.
        output: Output of the model; "" for the only one, or else the first that it has of
            ``sentence_embedding``, ``embedding``, ``embeddings``, ``last_hidden_state`` and
            ``token_embeddings``.
        threads: Maximum number of threads of one encoder call.
    """

    model: str = MINILM
    tokenizer: str = ""
    max_tokens: int = 256
    pooling: Literal["", "mean", "first", "max", "none"] = ""
    normalize: bool = True
    output: str = ""
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.model:
            raise wrong("model", "minilm, or the path of an encoder", self.model)
        whole("max_tokens", self.max_tokens, least=1, most=_MOST_TOKENS)
        whole("threads", self.threads, least=1, most=MOST_THREADS)


class ImageSettings(EmbedderSettings, frozen=True, tag="image"):
    """An embedder of images: an encoder and its recipe.

    An item is the bytes of an image, a ``data:`` URL, a URL if ``hosts`` allows it, or the path of a file
    if ``directory`` is set.

    Attributes:
        model: ONNX file, or directory that some runtime loads. Relative paths start from the directory of
            ``archive.toml``.
        recipe: File that describes how images are prepared; "" for ``encoder.toml`` beside the model, or the
            recipe in the model's metadata.
        output: Output of the model; "" for the only one, or else the first that it has of
            ``sentence_embedding``, ``embedding``, ``embeddings``, ``last_hidden_state`` and
            ``token_embeddings``.
        normalize: Whether vectors are scaled to length 1.
        hosts: Hosts that downloads are allowed from: names, ``*.example.com`` for all subdomains, ``*`` for
            any.
        ports: Ports that downloads are allowed from.
        allow_networks: Networks that downloads are allowed from although they are not public.
        ca_file: Trusted CA certificates in PEM; "" for those of the system.
        directory: Directory below which files may be read; "" for none.
        timeout_seconds: Timeout of one download in seconds, including redirects.
        max_bytes: Maximum size of a file in bytes.
        max_redirects: Maximum number of successive redirects.
        max_pixels: Maximum number of pixels of an image.
        formats: Formats that are decoded.
        connections: Maximum number of concurrent downloads.
        batch_rows: Maximum number of images in one encoder call.
        threads: Maximum number of threads of one encoder call.
    """

    model: str
    recipe: str = ""
    output: str = ""
    normalize: bool = False
    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = (80, 443)
    allow_networks: tuple[str, ...] = ()
    ca_file: str = ""
    directory: str = ""
    timeout_seconds: float = 10.0
    max_bytes: int = 20 * 1024 * 1024
    max_redirects: int = 3
    max_pixels: int = 40_000_000
    formats: tuple[Format, ...] = FORMATS
    connections: int = 16
    batch_rows: int = 16
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.model:
            raise wrong("model", "the path of an encoder", self.model)
        for port in self.ports:
            whole("ports", port, least=1, most=_MOST_PORTS)
        if not self.formats:
            raise wrong("formats", "at least one", self.formats)
        seconds("timeout_seconds", self.timeout_seconds, most=DAY, above_zero=True)
        whole("max_bytes", self.max_bytes, least=1, most=_LARGEST_DOWNLOAD_BYTES)
        whole("max_redirects", self.max_redirects, most=_MOST_REDIRECTS)
        whole("max_pixels", self.max_pixels, least=1, most=MOST_PIXELS)
        whole("connections", self.connections, least=1, most=MOST_THREADS)
        whole("batch_rows", self.batch_rows, least=1, most=_MOST_BATCH_ROWS)
        whole("threads", self.threads, least=1, most=MOST_THREADS)


class ModelSettings(EmbedderSettings, frozen=True, tag="model"):
    """An embedder that calls a served model, in this process or on a remote server.

    Attributes:
        model: Name of the model.
        version: Version of the model; 0 for the default version when the embedder is opened.
        input: Name of the only input, which takes a text or a number per row; "" for any name.
        output: Output of the model; "" for the only one, or else the first that it has of
            ``sentence_embedding``, ``embedding``, ``embeddings``, ``last_hidden_state`` and
            ``token_embeddings``.
        normalize: Whether vectors are scaled to length 1.
        url: Server of the Open Inference Protocol, as in ``http://encoder:8501``; "" for this process.
        token_file: File with the server's access token; "" for none.
        token_env: Environment variable with the token; "" for none.
        ca_file: Trusted CA certificates in PEM; "" for those of the system.
        timeout_seconds: Timeout of one call in seconds.
        batch_rows: Maximum number of contents in one call.
    """

    model: str
    version: int = 0
    input: str = ""
    output: str = ""
    normalize: bool = False
    url: str = ""
    token_file: str = ""
    token_env: str = ""
    ca_file: str = ""
    timeout_seconds: float = 30.0
    batch_rows: int = 32

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.model:
            raise wrong("model", "the name of a model", self.model)
        whole("version", self.version, most=_LARGEST_VERSION)
        seconds("timeout_seconds", self.timeout_seconds, most=DAY, above_zero=True)
        whole("batch_rows", self.batch_rows, least=1, most=_MOST_BATCH_ROWS)
        if self.token_file and self.token_env:
            raise wrong("token_env", "none, as token_file is set; remove one of the two", self.token_env)
        if not self.url and (self.token_file or self.token_env or self.ca_file):
            raise wrong("url", "a server's URL, as a token or certificates are set", self.url)
