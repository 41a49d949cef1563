"""A space in two dimensions: the right axes, neighbours that stay neighbours, and a picture of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import ConfigError, FailedPrecondition, InvalidRequest
from headrace.cli.archive.drawing import Picture, draw, to_name
from headrace.similarity.layout import Layout, clusters, layout
from headrace.similarity.neighbours import neighbours
from headrace.similarity.stored_rows import Rows
from tests.unit.similarity.spaces import digits


def test_the_axes_are_those_in_which_vectors_differ_most() -> None:
    from sklearn.decomposition import PCA

    vectors = digits()[0]
    made, exact = layout(Rows(vectors, "l2")), PCA(2).fit(vectors.astype(np.float64))
    wanted = exact.transform(vectors)
    for axis in range(2):
        correlation = np.corrcoef(made.points[:, axis], wanted[:, axis])[0, 1]
        assert abs(correlation) > 0.9999
    np.testing.assert_allclose(made.explained, exact.explained_variance_ratio_, rtol=1e-3)


def test_the_same_vectors_give_the_same_picture() -> None:
    rows = Rows(digits()[0].astype(np.float16))
    np.testing.assert_array_equal(layout(rows, seed=3).points, layout(rows, seed=3).points)
    np.testing.assert_allclose(layout(rows, seed=3).points, layout(rows, seed=4).points, atol=0.01)


def test_tsne_keeps_neighbours_that_two_axes_lose() -> None:
    vectors, labels = digits()
    rows = Rows(vectors[:300])
    kept = {}
    for made in (layout(rows, "pca"), layout(rows, "tsne")):
        nearest = neighbours(made.points, made.points, 2, metric="l2").rows[:, 1]
        kept[made.method] = np.mean(labels[:300] == labels[nearest])
    assert kept["tsne"] > 0.9 > kept["pca"]


def test_tsne_lays_out_vectors_of_one_number() -> None:
    vectors = np.repeat(np.arange(2, dtype=np.float32) * 100, 10)[:, None] + np.arange(20)[:, None] / 100
    points = layout(Rows(vectors.astype(np.float32), "l2"), "tsne").points
    assert points.shape == (20, 2)
    assert np.isfinite(points).all()


def test_very_many_rows_are_drawn_by_a_sample() -> None:
    rows = Rows(digits()[0])
    made = layout(rows, most=100)
    assert len(made.rows) == 100 == len(set(made.rows.tolist()))
    assert made.points.shape == (100, 2)
    assert (np.diff(made.rows) > 0).all()


def test_equal_vectors_have_a_layout() -> None:
    made = layout(Rows(np.ones((4, 1), np.float32)))
    assert np.isfinite(made.points).all()
    assert made.explained == (0.0, 0.0)


def test_invalid_layouts_are_refused() -> None:
    rows = Rows(digits()[0])
    with pytest.raises(InvalidRequest, match="at least 3 vectors"):
        layout(Rows(digits()[0][:2]))
    with pytest.raises(InvalidRequest, match="most: expected 3 to 5000 rows with tsne, got 5001"):
        layout(rows, "tsne", most=5001)
    with pytest.raises(InvalidRequest, match="method: expected pca or tsne, got 'umap'"):
        layout(rows, "umap")  # type: ignore[arg-type]


def test_clusters_are_mostly_of_one_digit_and_the_largest_comes_first() -> None:
    vectors, labels = digits()
    found = clusters(Rows(vectors), np.arange(len(vectors)), 10)
    sizes = np.bincount(found)
    assert list(sizes) == sorted(sizes, reverse=True)
    pure = sum(np.bincount(labels[found == one]).max() for one in range(10))
    assert pure / len(vectors) > 0.7


def a_picture(count: int = 300, labels: int = 12) -> Picture:
    made = layout(Rows(digits()[0][:count]))
    texts = [f"label {row % labels}" for row in range(count)]
    names = [f"$x_{row}$ \x1b[31m 数字 {'long ' * row}" for row in range(count)]
    return Picture(layout=made, labels=texts, names=names, named=to_name(made, texts, 20), title="digits")


@pytest.mark.parametrize(("end", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture_is_drawn_whatever_its_keys_are(tmp_path: Path, end: str, begins: bytes) -> None:
    file = tmp_path / f"space{end}"
    draw(a_picture(), file)
    assert file.read_bytes().startswith(begins)


def test_points_of_all_labels_are_named_and_none_twice() -> None:
    picture = a_picture(labels=5)
    assert len(picture.named) == 20 == len(set(picture.named))
    assert {picture.labels[place] for place in picture.named[:5]} == set(picture.labels)
    nothing = Layout(np.zeros(0, np.int64), np.zeros((0, 2), np.float32), "pca", (0.0, 0.0))
    assert to_name(nothing, [], 5) == []


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out: expected a file ending in .png, .svg, .pdf, got 'x.jpg'"):
        draw(a_picture(), tmp_path / "x.jpg")
    with pytest.raises(FailedPrecondition, match="cannot be written: No such file"):
        draw(a_picture(), tmp_path / "nowhere/x.png")
