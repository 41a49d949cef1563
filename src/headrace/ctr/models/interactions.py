"""Interactions: a linear weight, found by hashing, for each combination of two fields' values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.model_settings import Interaction, ModelSettings
from headrace.jit.kernel_cache import cached
from headrace.stream.block import Features

_SHIFT = np.uint64(32)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_ODD_TOO = np.uint64(0xD6E8FEB86659FD93)


class Crossing(NamedTuple):
    """A model's interactions in the form that kernels take.

    Attributes:
        slots: Slots of the two fields: int64 ``[interactions, 2]``.
        starts: Row of the first weight in the linear table: uint64 ``[interactions]``.
        buckets: Number of weights: uint64 ``[interactions]``.
    """

    slots: Array
    starts: Array
    buckets: Array

    @property
    def rows(self) -> int:
        """Number of rows of the linear table that belong to interactions."""
        return int(self.buckets.sum())

    def of(self, indices: Array) -> Array:
        """Return the rows of the linear table: uint32 ``[rows, interactions]``; 0 where a slot is empty.

        Args:
            indices: Rows of the tables: uint32 ``[rows, slots]``.
        """
        crossed = np.empty((len(indices), len(self.starts)), np.uint32)
        if crossed.size:
            _cross(indices, self, crossed)
        return crossed


def crossing(settings: ModelSettings, features: Features) -> Crossing:
    """Lay out a model's interactions after the tables' rows, in the order of the settings.

    Raises:
        ConfigError: A field does not exist, is not categorical, or may have several values; or there are
            more rows than can be numbered.
    """
    slots = [[_slot(features, name) for name in one.fields] for one in settings.interactions]
    buckets = np.array([one.buckets for one in settings.interactions], np.uint64)
    starts = features.rows + np.concatenate([[0], np.cumsum(buckets)]).astype(np.uint64)
    if starts[-1] > np.uint64(2**32 - 1):
        raise ConfigError(f"interactions: expected at most 2**32 - 1 linear weights, got {starts[-1]}")
    return Crossing(np.array(slots, np.int64).reshape(-1, 2), starts[:-1], buckets)


def interaction_name(interaction: Interaction) -> str:
    """Return the name of an interaction in explanations."""
    return " * ".join(interaction.fields)


def _slot(features: Features, name: str) -> int:
    for field, start in zip(features.categorical, features.slot_starts, strict=False):
        if field.name == name:
            if field.values > 1:
                raise ConfigError(f"interactions: {name!r} may have {field.values} values; expected one")
            return int(start)
    raise ConfigError(
        f"interactions: {name!r} is not a categorical field; there are "
        + (", ".join(field.name for field in features.categorical) or "none")
    )


@cached(nogil=True)
def _cross(indices: Array, crossing: Crossing, crossed: Array) -> None:
    for row in range(indices.shape[0]):
        for number in range(crossed.shape[1]):
            first = np.uint64(indices[row, crossing.slots[number, 0]])
            second = np.uint64(indices[row, crossing.slots[number, 1]])
            mixed = ((first << _SHIFT) | second) * _ODD
            mixed = (mixed ^ (mixed >> _SHIFT)) * _ODD_TOO
            place = crossing.starts[number] + (((mixed >> _SHIFT) * crossing.buckets[number]) >> _SHIFT)
            crossed[row, number] = place * np.uint64(first != 0 and second != 0)
