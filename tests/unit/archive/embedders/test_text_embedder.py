"""Texts to vectors, by the built-in encoder and by one of a test's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.archive.embedders import text_embedder
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.text_embedder import MOST_CHARACTERS_A_TOKEN, TextEmbedder, runs
from headrace.archive.operations.open_archive import open_embedder
from headrace.base.errors import ConfigError, LoadError
from headrace.base.tensors import Array
from headrace.runtimes import onnx as onnx_runtime
from headrace.runtimes.options import RuntimeOptions

HERE = Path()
CARD = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
CARD_COSINES = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
"""What all-MiniLM-L6-v2 gives in float32, as the documentation of sentence-transformers prints it."""


@pytest.fixture(scope="module")
def minilm_embedder() -> Iterator[Embedder]:
    embedder = open_embedder("minilm", None, HERE)
    yield embedder
    embedder.close()


def vectors(embedder: Embedder, texts: Sequence[str]) -> Array:
    made = embedder.embed([text.encode() for text in texts])
    assert not made.failures
    assert made.vectors.dtype == np.float32
    assert made.vectors.shape == (len(texts), embedder.dimension)
    return made.vectors


def plainly(text: str) -> Array:
    """The same as the model's card says it, one text at a time, without a line of the embedder's."""
    tokenizer = text_embedder.minilm_tokenizer()
    tokenizer.enable_truncation(256)
    ids = np.array([tokenizer.encode(text).ids], np.int64)
    model = onnx_runtime.load(text_embedder.minilm_file(), RuntimeOptions())
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    mean = model.predict(inputs)["last_hidden_state"][0].astype(np.float64).mean(axis=0)
    model.close()
    return mean / np.linalg.norm(mean)


def test_cosines_are_those_that_the_models_authors_publish(minilm_embedder: Embedder) -> None:
    made = vectors(minilm_embedder, CARD)
    np.testing.assert_allclose(made @ made.T, CARD_COSINES, atol=0.005)  # int8 weights: 0.003 measured
    assert minilm_embedder.dimension == 384


def test_vectors_are_the_plain_computation_whatever_shares_the_batch(minilm_embedder: Embedder) -> None:
    long = "a long text about rivers and the mills that they drive, " * 12
    texts = [CARD[0], long, "", "Sense and Sensibility", CARD[1]]
    together = vectors(minilm_embedder, texts)
    for place in (0, 1, 2):
        np.testing.assert_allclose(together[place], plainly(texts[place]), atol=2e-6)
    for place, text in enumerate(texts):
        np.testing.assert_allclose(together[place], vectors(minilm_embedder, [text])[0], atol=2e-6)


def test_films_of_one_kind_are_nearer_than_others(minilm_embedder: Embedder) -> None:
    wars, trek, park, lost, emma = vectors(
        minilm_embedder, ["Star Wars", "Star Trek", "Jurassic Park", "The Lost World: Jurassic Park", "Emma"]
    )
    assert wars @ trek > max(wars @ park, wars @ emma) + 0.1
    assert park @ lost > max(park @ wars, park @ emma) + 0.3


def test_any_bytes_are_a_text(minilm_embedder: Embedder) -> None:
    odd = [
        b"",
        b"\0",
        b"Star\0 Wars",
        b"\xed\xa0\x80 half a pair",
        b"\xff\xfe\xfd",
        "\u0301".encode() * 999,
        b"\xe4\xb8",
    ]
    made = minilm_embedder.embed(odd)
    assert not made.failures
    np.testing.assert_allclose(np.linalg.norm(made.vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(made.vectors[2], vectors(minilm_embedder, ["Star Wars"])[0], atol=2e-6)


class CountingTokenizer:
    """Passes on to a tokenizer, and notes how long the texts are."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.lengths: list[int] = []

    def encode(self, text: str) -> Any:
        self.lengths.append(len(text))
        return self._tokenizer.encode(text)


def test_a_text_of_a_megabyte_costs_what_the_longest_one_costs(
    minilm_embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut before it is tokenized: a megabyte of Chinese would take seconds."""
    tokenizer = CountingTokenizer(minilm_embedder._tokenizer)  # type: ignore[attr-defined]
    monkeypatch.setattr(minilm_embedder, "_tokenizer", tokenizer)
    for text in ("中" * 350_000, "a" * 1_000_000, "word " * 200_000):
        assert np.isfinite(vectors(minilm_embedder, [text])).all()
    assert tokenizer.lengths == [MOST_CHARACTERS_A_TOKEN * 256] * 3
    longest = "word " * 256
    np.testing.assert_allclose(
        vectors(minilm_embedder, ["word " * 200_000]), vectors(minilm_embedder, [longest]), atol=2e-6
    )


def test_threads_may_call_at_once(minilm_embedder: Embedder) -> None:
    expected = vectors(minilm_embedder, CARD)
    made: list[Array] = []

    def call() -> None:
        made.append(vectors(minilm_embedder, CARD))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    for one in made:
        np.testing.assert_allclose(one, expected, atol=2e-6)


@pytest.mark.rest
def test_fingerprints_change_with_what_vectors_depend_on(minilm_embedder: Embedder) -> None:
    def of(**settings: object) -> str:
        embedder = open_embedder("mine", {"kind": "text", **settings}, HERE)
        embedder.close()
        return embedder.fingerprint

    assert of() == of(threads=2) == minilm_embedder.fingerprint
    assert len({of(), of(max_tokens=32), of(pooling="first"), of(normalize=False)}) == 4


def test_texts_of_similar_length_share_a_batch() -> None:
    assert runs([]) == []
    assert runs([3, 9, 1]) == [[1, 0, 2]]
    by_length = [place for run in runs([n % 50 for n in range(200)]) for place in run]
    assert sorted(by_length) == list(range(200))
    assert [len(run) for run in runs([256] * 20)] == [16, 4]  # 4096 tokens in each
    assert [len(run) for run in runs([8192, 8192])] == [1, 1]
    assert [len(run) for run in runs([0] * 40)] == [32, 8]


# ---- An encoder of one's own --------------------------------------------------------------------


def words_tokenizer(file: Path, words: Sequence[str]) -> None:
    """One token a word, and none for words that it does not know: texts can come to nothing."""
    known = {word: number for number, word in enumerate(["[PAD]", *words])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="none"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(file))


def gather_model(file: Path, table: Array, *, length: int | None = None, rows: int | None = None) -> None:
    """``ids`` to rows of a table: an id beyond it fails the whole call."""
    shape = [rows or "rows", length or "tokens"]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["embedding"])],
        "gather",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, shape)],
        [
            helper.make_tensor_value_info(
                "embedding", TensorProto.FLOAT, [rows or "rows", length or "tokens", 3]
            )
        ],
        [numpy_helper.from_array(table, "table")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(file))


TABLE = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 4]], np.float32)
MINE: dict[str, object] = {"kind": "text", "model": "model.onnx", "normalize": False}


def own(directory: Path, table: Array = TABLE, **settings: object) -> TextEmbedder:
    words_tokenizer(directory / "tokenizer.json", ["red", "green", "blue", "beyond"])
    if not (directory / "model.onnx").exists():
        gather_model(directory / "model.onnx", table)
    embedder = open_embedder("mine", MINE | settings, directory)
    assert isinstance(embedder, TextEmbedder)
    return embedder


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("", [0.5, 0.5, 0]),
        ("mean", [0.5, 0.5, 0]),
        ("first", [1, 0, 0]),
        ("max", [1, 1, 0]),
    ],
)
def test_padding_is_left_out_of_what_is_pooled(tmp_path: Path, pooling: str, expected: list[float]) -> None:
    embedder = own(tmp_path, pooling=pooling)
    made = vectors(embedder, ["red green", "blue blue blue blue"])
    np.testing.assert_allclose(made[0], expected)
    np.testing.assert_allclose(made[1], [0, 0, 4])
    embedder.close()


def test_a_text_without_tokens_fails_alone(tmp_path: Path) -> None:
    embedder = own(tmp_path)
    made = embedder.embed([b"red", b"", b"green"])
    assert list(made.failures) == [1]
    assert made.failures[1].is_final
    np.testing.assert_allclose(made.vectors[[0, 2]], [[1, 0, 0], [0, 1, 0]])
    embedder.close()


def test_a_text_that_the_encoder_fails_on_fails_alone(tmp_path: Path) -> None:
    embedder = own(tmp_path)
    made = embedder.embed([b"red", b"beyond", b"green"])
    assert list(made.failures) == [1]
    assert made.failures[1].is_final
    assert made.failures[1].reason.startswith("the encoder fails: the model failed")
    np.testing.assert_allclose(made.vectors[[0, 2]], [[1, 0, 0], [0, 1, 0]])
    assert set(embedder.embed([b"beyond", b"beyond red"]).failures) == {0, 1}  # others would work
    embedder.close()


def test_shapes_that_a_model_was_exported_with_are_kept(tmp_path: Path) -> None:
    gather_model(tmp_path / "model.onnx", TABLE, length=2, rows=3)
    embedder = own(tmp_path)
    made = vectors(embedder, ["red", "green green green blue", "blue", "red blue", "blue red"])
    np.testing.assert_allclose(made, [[1, 0, 0], [0, 1, 0], [0, 0, 4], [0.5, 0, 2], [0.5, 0, 2]])
    embedder.close()


# ---- Settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"kind": "texts"}, r"embedders\.mine\.kind: expected one of 'text'"),
        ({}, r"embedders\.mine\.kind: expected one of 'text'.*, got None"),
        ({"kind": "text", "max_token": 3}, "max_token: unknown setting; did you mean max_tokens"),
        ({"kind": "text", "max_tokens": 0}, "max_tokens: expected a whole number, 1 or more"),
        ({"kind": "text", "max_tokens": 2}, r"max_tokens: .*the tokenizer's 2 special tokens, got 2"),
        ({"kind": "text", "max_tokens": 600}, "max_tokens: the encoder fails on a text of 600 tokens"),
        (
            {"kind": "text", "pooling": "none"},
            "pooling: expected an output of rows × numbers, got last",
        ),
        ({"kind": "text", "output": "logits"}, "output: expected one of last_hidden_state, got 'logits'"),
        (
            {"kind": "text", "model": "nowhere.onnx", "tokenizer": "x.json"},
            "tokenizer: .*, which does not exist",
        ),
        ({"kind": "text", "tokenizer": "x.json"}, "tokenizer: minilm has its own"),
    ],
)
def test_wrong_settings_are_told_by_their_name(table: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        open_embedder("mine", table, tmp_path)


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"embedder: expected minilm, or a table \[embedders\.mine\]"):
        open_embedder("mine", None, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ConfigError, match=r"is not a tokenizer\.json"):
        open_embedder("mine", MINE, tmp_path)
    words_tokenizer(tmp_path / "tokenizer.json", ["red"])
    with pytest.raises(LoadError, match=r"embedders\.mine: ONNX Runtime cannot load model\.onnx"):
        open_embedder("mine", MINE, tmp_path)
    with pytest.raises(
        ConfigError, match=r"an ONNX file or a model's directory, got .*, which does not exist"
    ):
        open_embedder("mine", MINE | {"model": "gone.onnx"}, tmp_path)


def test_inputs_that_no_tokenizer_fills_are_told(tmp_path: Path) -> None:
    words_tokenizer(tmp_path / "tokenizer.json", ["red"])
    graph = helper.make_graph(
        [helper.make_node("Identity", ["image"], ["embedding"])],
        "images",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", 3, 8, 8])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["rows", 3, 8, 8])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(tmp_path / "model.onnx"))
    with pytest.raises(ConfigError, match=r"expected inputs of numbers \[rows, tokens\].*got image FP32"):
        open_embedder("mine", MINE, tmp_path)
