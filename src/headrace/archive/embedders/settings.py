"""Which encoder, and how it is run: the ``[embedders.NAME]`` tables of ``archive.toml``."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.config.checks import DAY, MOST_THREADS, seconds, whole, wrong

MINILM = "minilm"
"""The name of the built-in text encoder."""

_MOST_TOKENS = 8192
_MOST_PORTS = 65_535
_LARGEST_DOWNLOAD_BYTES = 2**31 - 1
_MOST_PIXELS = 2**30
_MOST_REDIRECTS = 20
_MOST_BATCH_ROWS = 1024
_LARGEST_VERSION = 2**63 - 1


class EmbedderSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """What every kind of embedder has."""


class TextSettings(EmbedderSettings, frozen=True, tag="text"):
    """Texts, by an encoder and its tokenizer.

    Attributes:
        model: ``minilm``, the one that installs from a package; an ONNX file; or a directory that some
            runtime loads. A relative path starts from where ``archive.toml`` lies.
        tokenizer: A ``tokenizer.json``; "" for the one beside the model.
        max_tokens: Where texts are cut, the tokens that stand for start and end included.
        pooling: What makes one vector of the tokens' vectors: their ``mean``, the ``first`` one, the ``max``
            of each number; ``none`` where the model's output is one vector a text; "" for ``mean`` or
            ``none``, by the output's axes.
        normalize: Whether vectors are given the length 1.
        output: Which output of the model; "" for the only one, or the first with a usual name.
        threads: How many threads one call of the encoder may use.
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
    """Images, by an encoder and its recipe.

    A content is an image's bytes, a ``data:`` URL, a URL if hosts are allowed, or the path of a file if a
    directory is.

    Attributes:
        model: An ONNX file, or a directory that some runtime loads. Relative paths start from where
            ``archive.toml`` lies.
        recipe: How images are prepared for it; "" for the ``encoder.toml`` beside the model, or what the
            model's file says itself.
        output: Which output of the model; "" for the only one, or the first with a usual name.
        normalize: Whether vectors are given the length 1.
        hosts: What may be downloaded from: names, ``*.example.com`` for all below one, ``*`` for any. None
            by default.
        ports: Which ports of those.
        allow_networks: Addresses that those may lead to although they are not public.
        ca_file: Certificates of who may sign a server's, in PEM; "" for the system's.
        directory: Below which files may be read; "" for none.
        timeout_seconds: How long one download may take, redirects and all.
        max_bytes: The largest file.
        max_redirects: How many may follow one another.
        max_pixels: The largest image.
        formats: What is decoded: JPEG, PNG, WEBP, GIF, BMP, TIFF.
        connections: How many downloads run side by side.
        batch_rows: How many images one call of the encoder gets.
        threads: How many threads one call of the encoder may use.
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
    formats: tuple[Literal["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"], ...] = ("JPEG", "PNG", "WEBP", "GIF")
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
        whole("max_pixels", self.max_pixels, least=1, most=_MOST_PIXELS)
        whole("connections", self.connections, least=1, most=MOST_THREADS)
        whole("batch_rows", self.batch_rows, least=1, most=_MOST_BATCH_ROWS)
        whole("threads", self.threads, least=1, most=MOST_THREADS)


class ModelSettings(EmbedderSettings, frozen=True, tag="model"):
    """Any contents, by a model that is served: by this process, or by a remote server.

    Attributes:
        model: Its name.
        version: Which version; 0 for the one that is the default when the embedder is opened.
        input: The one input, which takes a text or a number a row; "" for whatever it is called.
        output: Which output of the model; "" for the only one, or the first with a usual name.
        normalize: Whether vectors are given the length 1.
        url: A server of the Open Inference Protocol, as in ``http://encoder:8501``; "" for this process.
        token_file: A file of the token that the server wants; "" for none.
        token_env: A variable of the environment that holds it; "" for none.
        ca_file: Certificates of who may sign the server's, in PEM; "" for the system's.
        timeout_seconds: How long one call may take.
        batch_rows: How many contents one call has at most.
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
            raise wrong("token_env", "either token_file or token_env", self.token_env)
        if not self.url and (self.token_file or self.token_env or self.ca_file):
            raise wrong("url", "a server's URL, for the token or certificates that are said", self.url)
