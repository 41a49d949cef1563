"""Layouts of a space in two dimensions, for drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from headrace.base.errors import InvalidRequest, needs_extra
from headrace.similarity.stored_rows import (
    Doubles,
    Floats,
    Numbers,
    Progress,
    Rows,
    ignore_progress,
    make_cells,
)

Method = Literal["pca", "tsne"]
"""Layout by the two principal components, or by t-SNE, which keeps neighbours together."""

MOST_ROWS = 50_000
"""Maximum number of rows in a layout; more points could not be distinguished."""

MOST_TSNE_ROWS = 5000
"""Maximum number of rows for t-SNE, which compares all pairs repeatedly."""

_PCA_BEFORE_TSNE = 50
_OVERSAMPLED = 10
_POWER_TURNS = 4
_CLUSTER_TURNS = 25
_PERPLEXITY = 30.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of rows in two dimensions.

    Attributes:
        rows: int64 ``[M]``: numbers of the rows, ascending; a sample if there are too many.
        points: float32 ``[M, 2]``: positions.
        method: Method of the layout.
        explained: Shares of the variance that the two axes explain; None for t-SNE, whose axes have no
            meaning.
    """

    rows: Numbers
    points: Floats
    method: Method
    explained: tuple[float, float] | None


def layout(
    rows: Rows, method: Method = "pca", *, most: int = 0, seed: int = 0, progress: Progress = ignore_progress
) -> Layout:
    """Lay out a space in two dimensions.

    Args:
        rows: Vectors; for ``cosine`` their directions are used.
        method: Method of the layout.
        most: Maximum number of rows; 0 for the method's maximum.
        seed: Seed of the sample, of the random projections of PCA, and of t-SNE.
        progress: Called with the progress.

    Raises:
        InvalidRequest: There are fewer than 3 rows, or the method or ``most`` is invalid.
        ConfigError: The method is t-SNE and scikit-learn is not installed.
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
    """Cluster rows by k-means, for colouring.

    Args:
        rows: Vectors.
        which: Numbers of the rows to cluster.
        count: Maximum number of clusters.
        seed: Seed of k-means.

    Returns:
        int64 ``[M]``: cluster of each row; 0 is the largest cluster.
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
    """Return the rows projected on their principal components, and each component's share of the variance.

    The components are found by randomized SVD. Each is oriented so that its number of largest magnitude is
    positive, so equal vectors give equal pictures.
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
    except ImportError as error:
        raise needs_extra("t-SNE", "sklearn", error) from error
    if taken.shape[1] > _PCA_BEFORE_TSNE:
        taken = _principal(taken, min(_PCA_BEFORE_TSNE, *taken.shape), seed)[0]
    if taken.shape[1] == 1:  # TSNE starts from two principal components
        taken = np.pad(taken, ((0, 0), (0, 1)))
    # TSNE requires a perplexity below the number of vectors.
    perplexity = min(_PERPLEXITY, (len(taken) - 1) / 3)
    made: Any = TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(taken)
    return np.asarray(made, np.float32)
