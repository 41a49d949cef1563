"""A space in two dimensions, to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from headrace.archive.similarity.cells import make_cells
from headrace.archive.similarity.rows import Doubles, Floats, Numbers, Progress, Rows, unwatched
from headrace.errors import ConfigError, InvalidRequest

Method = Literal["pca", "tsne"]
"""By the two directions in which vectors differ most, or so that neighbours stay neighbours."""

MOST_ROWS = 50_000
"""The most rows that are drawn; more cannot be told apart."""

MOST_TSNE_ROWS = 5000
"""The most rows of t-SNE, which compares all with all, over and over."""

_PCA_BEFORE_TSNE = 50
_OVERSAMPLED = 10
_POWER_TURNS = 4
_CLUSTER_TURNS = 25
_PERPLEXITY = 30.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where some rows are.

    Attributes:
        rows: int64 ``[M]``: which rows, ascending; a sample, if there are very many.
        points: float32 ``[M, 2]``.
        method: How they were laid out.
        explained: Which share of the variance the two axes have; None for t-SNE, whose axes mean nothing.
    """

    rows: Numbers
    points: Floats
    method: Method
    explained: tuple[float, float] | None


def layout(
    rows: Rows, method: Method = "pca", *, most: int = 0, seed: int = 0, progress: Progress = unwatched
) -> Layout:
    """Lay a space out in two dimensions.

    Args:
        rows: The vectors; for ``cosine`` it is their directions.
        method: How.
        most: How many rows to lay out at the most; 0 for as many as the method takes.
        seed: What the sample, and where t-SNE begins, depend on.
        progress: Told how far it is.

    Raises:
        InvalidRequest: There are fewer than 3 rows, or the method or the number is none.
        ConfigError: scikit-learn is not installed, for t-SNE.
    """
    if method not in get_args(Method):
        raise InvalidRequest(f"expected {' or '.join(get_args(Method))}, got {method!r}", field="method")
    if rows.count < 3:
        raise InvalidRequest(f"expected at least 3 vectors to lay out, got {rows.count}", field="vectors")
    limit = MOST_TSNE_ROWS if method == "tsne" else MOST_ROWS
    if not 0 <= most <= limit or most in (1, 2):
        raise InvalidRequest(f"expected 3 to {limit} rows with {method}, got {most}", field="most")
    some = _sampled(rows.count, most or limit, seed)
    taken = rows.take(some)
    progress("laying out", 0, 1)
    if method == "tsne":
        made = Layout(some, _tsne(taken, seed), method, None)
    else:
        points, shares = _principal(taken, 2, seed)
        made = Layout(some, points, method, (float(shares[0]), float(shares[1])))
    progress("laying out", 1, 1)
    return made


def clusters(rows: Rows, which: Numbers, count: int, seed: int = 0) -> Numbers:
    """Put rows into clusters by k-means, to be coloured.

    Args:
        rows: The vectors.
        which: Those that are to be in clusters.
        count: How many clusters at the most.
        seed: Where it begins.

    Returns:
        int64 ``[M]``: of each row its cluster, the largest one being 0.
    """
    home = make_cells(rows.only(which), count, 1, seed, turns=_CLUSTER_TURNS).home
    sizes = np.bincount(home, minlength=count)
    rank = np.empty(len(sizes), np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    return rank[home]


def _sampled(count: int, most: int, seed: int) -> Numbers:
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


def _principal(taken: Floats, components: int, seed: int) -> tuple[Floats, Doubles]:
    """The directions in which vectors differ most, by random projections; and each one's share of variance.

    Each direction is turned so that its largest number is positive: the same vectors give the same picture.
    """
    centred = taken - taken.mean(axis=0, dtype=np.float64).astype(np.float32)
    total = float(np.einsum("ij,ij->", centred, centred, dtype=np.float64))
    width = min(components + _OVERSAMPLED, *centred.shape)
    start = np.random.default_rng(seed).standard_normal((centred.shape[1], width), dtype=np.float32)
    basis = np.linalg.qr(centred @ start)[0]
    for _ in range(_POWER_TURNS):
        basis = np.linalg.qr(centred @ np.linalg.qr(centred.T @ basis)[0])[0]
    _, singular, directions = np.linalg.svd(basis.T @ centred, full_matrices=False)
    axes = np.zeros((components, centred.shape[1]), np.float32)
    axes[: len(directions)] = directions[:components]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    axes *= np.where(largest < 0, -1, 1).astype(np.float32)
    shares = np.zeros(components)
    found = singular[:components].astype(np.float64) ** 2
    shares[: len(found)] = found / total if total else 0
    return centred @ axes.T, shares


def _tsne(taken: Floats, seed: int) -> Floats:
    try:
        from sklearn.manifold import TSNE  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise ConfigError("t-SNE needs scikit-learn: pip install 'headrace[sklearn]'") from None
    if taken.shape[1] > _PCA_BEFORE_TSNE:
        taken = _principal(taken, min(_PCA_BEFORE_TSNE, *taken.shape), seed)[0]
    # It must be less than the number of vectors.
    perplexity = min(_PERPLEXITY, (len(taken) - 1) / 3)
    made: Any = TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(taken)
    return np.asarray(made, np.float32)
