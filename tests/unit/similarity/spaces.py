"""Real vectors for tests: handwritten digits, and pieces of photographs that overlap."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@cache
def digits() -> tuple[Floats, npt.NDArray[np.int64]]:
    """1,797 handwritten digits as 64 numbers each, and which digits they are."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images.astype(np.float32), labels


@cache
def patches(count: int) -> npt.NDArray[np.float16]:
    """Pieces of 16 × 16 pixels of two photographs, without their brightness; many of them overlap."""
    from sklearn.datasets import load_sample_images

    made = []
    for image in load_sample_images().images:
        grey = image.mean(axis=2).astype(np.float32)
        made.append(np.lib.stride_tricks.sliding_window_view(grey, (16, 16)).reshape(-1, 16, 16))
    pieces = np.concatenate(made)
    some = np.sort(np.random.default_rng(0).choice(len(pieces), count, replace=False))
    flat = pieces[some].reshape(count, 256)
    return ((flat - flat.mean(axis=1, keepdims=True)) / 255).astype(np.float16)
