"""A text encoder of one's own: an LSTM with self-attention, trained in Keras on what films are called.

    python -m demo.encoders.titles DIR

learns the genres of MovieLens' films from their titles, and writes what the archive needs to DIR: a
SavedModel that makes a vector of a title's tokens, and its ``tokenizer.json``. The table then says what the
vectors are worth on films that it has not seen: how many of the nearest ones share a genre with them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demo import data
from headrace.archive.operations.open_archive import open_embedder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

Array = npt.NDArray[Any]

VOCABULARY, TOKENS, WIDTH, VECTOR = 2000, 16, 64, 64
EPOCHS, BATCH = 16, 64
HELD_OUT_EVERY = 5
NEAREST = 10
SEED = 7


def train(films: Sequence[data.Film], folder: Path, epochs: int = EPOCHS) -> None:
    """Learn an encoder, and write it.

    Args:
        films: What it learns from.
        folder: Where it is written; not there yet.
        epochs: How often it sees each film.
    """
    import keras  # noqa: PLC0415 - slow to import

    keras.utils.set_random_seed(SEED)
    tokenizer = trained_tokenizer([film.title for film in films])
    genres = sorted({genre for film in films for genre in film.genres})
    ids = np.array([padded(tokenizer.encode(film.title).ids) for film in films], np.int32)
    wanted = np.array([[genre in film.genres for genre in genres] for film in films], np.float32)
    encoder, classifier = networks(tokenizer.get_vocab_size(), len(genres))
    classifier.compile(optimizer=keras.optimizers.Adam(0.002), loss="binary_crossentropy")
    classifier.fit(ids, wanted, batch_size=BATCH, epochs=epochs, verbose=0)
    write(encoder, folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def trained_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Word pieces of the texts, in small letters; the number 0 is what short texts are filled up with."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: PLC0415

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=special, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def padded(ids: Sequence[int]) -> list[int]:
    """As many tokens as the network is trained with."""
    return [*ids[:TOKENS], *[0] * (TOKENS - len(ids))]


def networks(tokens: int, genres: int) -> tuple[Any, Any]:
    """The encoder of ids to a vector, and the classifier on top that it learns by."""
    import keras  # noqa: PLC0415 - slow to import
    from keras import layers, ops  # noqa: PLC0415

    ids = keras.Input((None,), dtype="int32", name="input_ids")
    there = ops.cast(ops.not_equal(ids, 0), "float32")
    # What fills up must not count: how much there is of it depends on the other titles of a batch.
    words = layers.SpatialDropout1D(0.2)(layers.Embedding(tokens, WIDTH, mask_zero=True)(ids))
    states = layers.Bidirectional(layers.LSTM(WIDTH, return_sequences=True))(words)
    scores = layers.Dense(1, use_bias=False)(layers.Dense(WIDTH, activation="tanh")(states))[..., 0]
    attention = ops.softmax(scores - 1e9 * (1.0 - there))
    read = ops.sum(states * attention[..., None], axis=1)
    vector = layers.Dense(VECTOR, activation="tanh", name="vector")(read)
    answer = layers.Dense(genres, activation="sigmoid")(layers.Dropout(0.3)(vector))
    return keras.Model(ids, vector), keras.Model(ids, answer)


def write(encoder: Any, folder: Path) -> None:
    """Write the encoder as a SavedModel with one input and one output."""
    import tensorflow  # noqa: PLC0415 - slow to import
    from keras.export import ExportArchive  # noqa: PLC0415

    archive = ExportArchive()
    archive.track(encoder)
    archive.add_endpoint(
        "serving_default",
        lambda input_ids: {"embedding": encoder(input_ids)},
        input_signature=[tensorflow.TensorSpec([None, None], tensorflow.int32, name="input_ids")],
    )
    archive.write_out(str(folder), verbose=False)


def vectors(table: Mapping[str, object] | None, name: str, base: Path, titles: Sequence[str]) -> Array:
    """The vectors that an embedder of the archive makes; zeros where it makes none."""
    embedder = open_embedder(name, table, base)
    try:
        made = embedder.embed([title.encode() for title in titles])
        for place in made.failures:
            made.vectors[place] = 0
        return made.vectors
    finally:
        embedder.close()


def sharing(new: Array, known: Array, new_films: Sequence[data.Film], films: Sequence[data.Film]) -> float:
    """Of the films nearest to new ones, how many share a genre with them."""
    nearest = np.argsort(-(new @ known.T), axis=1)[:, :NEAREST]
    shared = [
        bool(set(film.genres) & set(films[near].genres))
        for film, places in zip(new_films, nearest, strict=True)
        for near in places
    ]
    return float(np.mean(shared))


def main() -> None:
    """Train, write, and print what the vectors are worth."""
    parser = argparse.ArgumentParser(prog="python -m demo.encoders.titles", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the encoder is written")
    parser.add_argument("--data", type=Path, default=Path(".data/ratings"), metavar="DIR", help="the ratings")
    options = parser.parse_args()
    films = list(data.load(data.fetch(options.data)).films.values())
    new = films[::HELD_OUT_EVERY]
    known = [film for place, film in enumerate(films) if place % HELD_OUT_EVERY]
    train(known, options.folder)
    titles = [film.title for film in [*new, *known]]
    random = np.random.default_rng(SEED).normal(size=(len(titles), VECTOR))
    made = {
        "any film": random,
        "minilm": vectors(None, "minilm", options.folder, titles),
        "the LSTM": vectors({"kind": "text", "model": "."}, "own", options.folder, titles),
    }
    print(f"{len(known)} films learnt from. Of the {NEAREST} nearest to a new one share a genre with it:")
    for name, found in made.items():
        print(f"  {name:<10} {sharing(found[: len(new)], found[len(new) :], new, known):.1%}")


if __name__ == "__main__":
    main()
