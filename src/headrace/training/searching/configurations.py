"""What a search tries: every combination of a grid, and what comes on top."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headrace.config.reading import convert
from headrace.ctr.settings import ModelSettings
from headrace.errors import ConfigError
from headrace.training.configuration import changed, settings_of

MOST_CONFIGURATIONS = 256


class Gates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model may not exceed to be served.

    Attributes:
        max_size_mb: The size of its version, in millions of bytes.
        max_latency_ms: The time to predict 300 candidates, in milliseconds.
    """

    max_size_mb: float | None = None
    max_latency_ms: float | None = None


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is tried.

    Attributes:
        base: The settings that all configurations start from.
        grid: Lists of values by the setting's name, such as ``embeddings.learning_rate``: every combination
            is a configuration.
        configurations: Further ones, each with its settings.
        gates: What a model may not exceed.
    """

    base: dict[str, object] = {}
    grid: dict[str, list[object]] = {}
    configurations: list[dict[str, object]] = []
    gates: Gates = Gates()


class Configuration(NamedTuple):
    """One that is tried.

    Attributes:
        name: How it differs from the base.
        settings: All its settings.
    """

    name: str
    settings: ModelSettings


def read_search(values: Mapping[str, object], where: str) -> SearchSettings:
    """Read what a TOML file wants to be tried.

    Raises:
        ConfigError: A setting is unknown or wrong.
    """
    return convert(values, SearchSettings, where)


def configurations(search: SearchSettings, base: Mapping[str, object]) -> list[Configuration]:
    """All configurations that are tried, without those that are the same as another.

    Args:
        search: What is wanted.
        base: Settings that the search's own base changes.

    Raises:
        ConfigError: A setting is wrong, or there are none, or too many.
    """
    names = list(search.grid)
    products = itertools.product(*search.grid.values()) if names else iter(())
    wanted = [dict(zip(names, values, strict=True)) for values in products]
    start = changed(base, search.base)
    found: dict[ModelSettings, str] = {}
    for changes in [*wanted, *search.configurations]:
        name = " ".join(f"{key}={_short(value)}" for key, value in changes.items()) or "base"
        found.setdefault(settings_of(changed(start, changes), f"search: {name}"), name)
    if not 1 <= len(found) <= MOST_CONFIGURATIONS:
        raise ConfigError(
            f"search: expected 1 to {MOST_CONFIGURATIONS} configurations, got {len(found)}; give lists in "
            "[grid], or tables [[configurations]]"
        )
    return [Configuration(name, settings) for settings, name in found.items()]


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{name}={_short(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_short(one) for one in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
