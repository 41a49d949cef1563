"""Configurations of a search: every combination of a grid, and further ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headrace.base.errors import ConfigError
from headrace.config.toml_reader import convert
from headrace.ctr.model_settings import ModelSettings
from headrace.training.model_toml import changed, settings_of

MOST_CONFIGURATIONS = 256


class Gates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that a model must keep to be served.

    Attributes:
        max_size_mb: Largest size of its version, in millions of bytes; None for no limit.
        max_latency_ms: Longest time to predict 300 candidates, in milliseconds; None for no limit.
    """

    max_size_mb: float | None = None
    max_latency_ms: float | None = None


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a search.

    Attributes:
        base: Settings that all configurations start from.
        grid: Lists of values by the setting's name, such as ``embeddings.learning_rate``: every combination
            is a configuration.
        configurations: Further configurations, each as changes to the base.
        gates: Limits that a model must keep.
    """

    base: dict[str, object] = {}
    grid: dict[str, list[object]] = {}
    configurations: list[dict[str, object]] = []
    gates: Gates = Gates()


class Configuration(NamedTuple):
    """A configuration that a search tries.

    Attributes:
        name: Its differences from the base.
        settings: Complete settings.
    """

    name: str
    settings: ModelSettings


def read_search(values: Mapping[str, object], where: str) -> SearchSettings:
    """Convert the settings of a search, read from TOML.

    Raises:
        ConfigError: A setting is unknown or invalid.
    """
    return convert(values, SearchSettings, where)


def configurations(search: SearchSettings, base: Mapping[str, object]) -> list[Configuration]:
    """Return all configurations of a search, without duplicates.

    Args:
        search: Settings of the search.
        base: Settings to which the search's own base is applied.

    Raises:
        ConfigError: A setting is invalid, or there are no configurations, or too many.
    """
    names = list(search.grid)
    count = math.prod(map(len, search.grid.values())) if names else 0
    if count > MOST_CONFIGURATIONS:  # before they are made: ten lists of ten values are 10,000,000,000
        raise _wrong_number(count)
    products = itertools.product(*search.grid.values()) if names else iter(())
    wanted = [dict(zip(names, values, strict=True)) for values in products]
    start = changed(base, search.base)
    found: dict[ModelSettings, str] = {}
    for changes in [*wanted, *search.configurations]:
        name = " ".join(f"{key}={_short(value)}" for key, value in changes.items()) or "base"
        found.setdefault(settings_of(changed(start, changes), f"search: {name}"), name)
    if not 1 <= len(found) <= MOST_CONFIGURATIONS:
        raise _wrong_number(len(found))
    return [Configuration(name, settings) for settings, name in found.items()]


def _wrong_number(count: int) -> ConfigError:
    return ConfigError(
        f"search: expected 1 to {MOST_CONFIGURATIONS} configurations, got {count}; add or remove values in "
        "[grid], or tables [[configurations]]"
    )


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{name}={_short(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_short(one) for one in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
