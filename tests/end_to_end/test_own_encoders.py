"""Encoders that the project trains itself are written, loaded and used by configuration alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from demo.data import Film
from headrace.archive.operations.open_archive import open_embedder
from headrace.base.errors import ConfigError

pytest.importorskip("tensorflow", reason="the extra tensorflow is not installed")

from demo.encoders import digits, titles

FILMS = [
    Film("The Empire Strikes Back", 1980, ("Action", "Sci-Fi")),
    Film("Return of the Jedi", 1983, ("Action", "Sci-Fi")),
    Film("Star Trek: The Motion Picture", 1979, ("Action", "Sci-Fi")),
    Film("Star Trek IV: The Voyage Home", 1986, ("Action", "Sci-Fi")),
    Film("Star Trek: First Contact", 1996, ("Action", "Sci-Fi")),
    Film("Star Wars", 1977, ("Action", "Sci-Fi")),
    Film("Sense and Sensibility", 1995, ("Drama", "Romance")),
    Film("The Bridges of Madison County", 1995, ("Drama", "Romance")),
    Film("The English Patient", 1996, ("Drama", "Romance")),
    Film("Romeo and Juliet", 1996, ("Drama", "Romance")),
    Film("The Age of Innocence", 1993, ("Drama", "Romance")),
    Film("An Affair to Remember", 1957, ("Drama", "Romance")),
]


@pytest.mark.rest
def test_an_lstm_with_attention_embeds_texts(tmp_path: Path) -> None:
    titles.train(FILMS, tmp_path / "titles", epochs=40)
    names = [film.title for film in FILMS]
    table = {"kind": "text", "model": "titles"}
    embedder = open_embedder("titles", table, tmp_path)
    made = embedder.embed([name.encode() for name in names]).vectors
    assert made.shape == (len(FILMS), titles.VECTOR)
    cosines = made @ made.T
    assert cosines[:6, :6].mean() > cosines[:6, 6:].mean() + 0.2
    for place, name in enumerate(names):  # alone as among others, however long they are
        np.testing.assert_allclose(embedder.embed([name.encode()]).vectors[0], made[place], atol=1e-5)
    embedder.close()


@pytest.mark.rest
def test_an_encoder_that_depends_on_padding_is_refused(tmp_path: Path) -> None:
    import keras

    titles.train(FILMS, tmp_path / "titles", epochs=1)
    ids = keras.Input((None,), dtype="int32", name="input_ids")
    words = keras.layers.Embedding(titles.VOCABULARY, 8)(ids)
    titles.write(keras.Model(ids, keras.layers.GlobalAveragePooling1D()(words)), tmp_path / "plain")
    table = {"kind": "text", "model": "plain", "tokenizer": "titles/tokenizer.json"}
    with pytest.raises(ConfigError, match="the vector of a text depends on its padding"):
        open_embedder("plain", table, tmp_path)


@pytest.mark.rest
def test_a_network_for_digits_embeds_images(tmp_path: Path) -> None:
    images, names = digits.digits()
    known, new = slice(0, 1200), slice(1200, 1500)
    digits.train(images[known], names[known], tmp_path / "digits", epochs=4)
    made = digits.vectors(tmp_path / "digits", images[:1500])
    assert digits.named_rightly(made[known], names[known], made[new], names[new]) > 0.85
