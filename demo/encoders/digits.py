"""An image encoder of one's own: a small convolutional network, trained in Keras on written digits.

    python -m demo.encoders.digits DIR

learns scikit-learn's digits, and writes to DIR what the archive needs: a SavedModel that makes a vector of an
image, and the recipe of how images are prepared for it. Digits that it has not seen are then embedded as PNG
files by the archive's embedder, and named by the digits nearest to them.
"""

from __future__ import annotations

import argparse
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from headrace.archive.operations.open_archive import open_embedder

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

Array = npt.NDArray[Any]

SIDE, VECTOR = 16, 32
EPOCHS, BATCH = 15, 64
HELD_OUT_EVERY = 4
NEAREST = 5
SEED = 7
RECIPE = f"""size = [{SIDE}, {SIDE}]
filter = "bilinear"
layout = "NHWC"
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
"""


def digits() -> tuple[list[Image.Image], Array]:
    """1,797 digits that people have written, as images, and what they are."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import

    found = load_digits()
    pixels = (255 - found.images * 255 / 16).astype(np.uint8)  # black on white
    return [Image.fromarray(one).resize((64, 64)) for one in pixels], found.target


def train(images: list[Image.Image], names: Array, folder: Path, epochs: int = EPOCHS) -> None:
    """Learn an encoder, and write it with its recipe.

    Args:
        images: What it learns from.
        names: What they show.
        folder: Where it is written; not there yet.
        epochs: How often it sees each image.
    """
    import keras  # noqa: PLC0415 - slow to import

    keras.utils.set_random_seed(SEED)
    encoder, classifier = networks()
    classifier.compile(optimizer=keras.optimizers.Adam(0.002), loss="sparse_categorical_crossentropy")
    small = [image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR) for image in images]
    numbers = (np.stack(small) / 255.0 - 0.5) / 0.5
    classifier.fit(numbers.astype(np.float32), names, batch_size=BATCH, epochs=epochs, verbose=0)
    write(encoder, folder)
    (folder / "encoder.toml").write_text(RECIPE)


def networks() -> tuple[Any, Any]:
    """The encoder of pixels to a vector, and the classifier on top that it learns by."""
    import keras  # noqa: PLC0415 - slow to import
    from keras import layers  # noqa: PLC0415

    image = keras.Input((SIDE, SIDE, 3), name="image")
    seen = layers.Conv2D(16, 3, activation="relu")(image)
    seen = layers.MaxPooling2D()(layers.Conv2D(32, 3, activation="relu")(seen))
    vector = layers.Dense(VECTOR, activation="tanh")(layers.Flatten()(seen))
    answer = layers.Dense(10, activation="softmax")(layers.Dropout(0.2)(vector))
    return keras.Model(image, vector), keras.Model(image, answer)


def write(encoder: Any, folder: Path) -> None:
    """Write the encoder as a SavedModel with one input and one output."""
    import tensorflow  # noqa: PLC0415 - slow to import
    from keras.export import ExportArchive  # noqa: PLC0415

    archive = ExportArchive()
    archive.track(encoder)
    archive.add_endpoint(
        "serving_default",
        lambda image: {"embedding": encoder(image)},
        input_signature=[tensorflow.TensorSpec([None, SIDE, SIDE, 3], tensorflow.float32, name="image")],
    )
    archive.write_out(str(folder), verbose=False)


def png(image: Image.Image) -> bytes:
    """An image as a file's bytes."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def vectors(folder: Path, images: list[Image.Image]) -> Array:
    """The vectors that the archive's embedder makes of image files."""
    embedder = open_embedder("digits", {"kind": "image", "model": ".", "normalize": True}, folder)
    try:
        return embedder.embed([png(image) for image in images]).vectors
    finally:
        embedder.close()


def named_rightly(known: Array, names: Array, new: Array, truth: Array) -> float:
    """Of new digits, how many are what most of those nearest to them are."""
    nearest = names[np.argsort(-(new @ known.T), axis=1)[:, :NEAREST]]
    said = [np.bincount(row, minlength=10).argmax() for row in nearest]
    return float(np.mean(np.array(said) == truth))


def main() -> None:
    """Train, write, and print what the vectors are worth."""
    parser = argparse.ArgumentParser(prog="python -m demo.encoders.digits", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the encoder is written")
    options = parser.parse_args()
    images, names = digits()
    is_new = np.arange(len(images)) % HELD_OUT_EVERY == 0
    known = [image for image, new in zip(images, is_new, strict=True) if not new]
    train(known, names[~is_new], options.folder)
    made = vectors(options.folder, images)
    right = named_rightly(made[~is_new], names[~is_new], made[is_new], names[is_new])
    print(f"{len(known)} digits learnt from. The {NEAREST} nearest to a new one name it rightly: {right:.1%}")


if __name__ == "__main__":
    main()
