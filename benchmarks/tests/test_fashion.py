"""The files of Fashion-MNIST as they are read, and the network that is served."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fashion import CLOTHES, Images, png, read, write
from headrace.serving.engine import Engine


def write_idx(directory: Path, name: str, magic: int, values: np.ndarray, *, cut: int = 0) -> None:
    content = struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes()
    (directory / f"{name}.gz").write_bytes(gzip.compress(content[: len(content) - cut]))


def bright(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose brightness tells their class."""
    classes = (np.arange(count) % 10).astype(np.uint8)
    return np.repeat(classes * 25, 28 * 28).reshape(count, 28, 28).astype(np.uint8), classes


def test_idx_files_are_read_as_they_are_published(tmp_path: Path) -> None:
    images, classes = bright(30)
    for part, some in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        write_idx(tmp_path, f"{part}-images-idx3-ubyte", 2051, images[some])
        write_idx(tmp_path, f"{part}-labels-idx1-ubyte", 2049, classes[some])
    found = read(tmp_path)
    np.testing.assert_array_equal(found.trained, images[:20])
    np.testing.assert_array_equal(found.test_classes, classes[20:])
    write_idx(tmp_path, "t10k-images-idx3-ubyte", 2051, images[20:], cut=1)
    with pytest.raises(
        SystemExit, match="t10k-images-idx3-ubyte is not an IDX file of Fashion-MNIST, or is cut"
    ):
        read(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(SystemExit, match=r"expected t10k-images-idx3-ubyte or t10k-images-idx3-ubyte.gz in"):
        read(tmp_path)


@pytest.mark.rest
def test_the_served_network_is_as_right_as_the_trained_one(tmp_path: Path) -> None:
    images, classes = bright(400)
    alone = write(tmp_path / "fashion", Images("bright", CLOTHES, images, classes, images, classes))
    with Engine.in_thread(tmp_path) as engine:
        given = engine.predict_blocking("fashion", {"image": [png(one) for one in images[:100]]})["label"]
    right = [label.decode() == CLOTHES[one] for label, one in zip(given, classes, strict=False)]
    assert np.mean(right) == pytest.approx(alone[:100].mean(), abs=0.02)
    assert alone.mean() > 0.15
