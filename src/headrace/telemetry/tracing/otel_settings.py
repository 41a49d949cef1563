"""Combine headrace's tracing settings with OpenTelemetry's variables; a pure function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.base.errors import ConfigError
from headrace.config import Tracing

_SAMPLERS: Mapping[str, tuple[bool, float | None]] = {
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}
_PROTOCOLS: Mapping[str, Literal["grpc", "http"]] = {"grpc": "grpc", "http/protobuf": "http"}
_MOST_WAITING, _EVERY_MS, _LONGEST_PAUSE_MS = 4096, 1000.0, 60_000.0
_PROTOCOL_NAMES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings of tracing.

    Attributes:
        endpoint: Endpoint of the collector; None if the exporter reads it from OpenTelemetry's variables.
        protocol: Protocol of the collector.
        rate: Share to record of the traces that begin here.
        follows_parent: Whether a caller's decision applies.
        most_per_second: Largest number of calls recorded per second.
        service_name: Name of the server; None if OpenTelemetry's variables give it.
        most_waiting: Largest number of calls waiting to be sent.
        every_seconds: Interval between sends in seconds.
    """

    endpoint: str | None
    protocol: Literal["grpc", "http"]
    rate: float
    follows_parent: bool
    most_per_second: int
    service_name: str | None
    most_waiting: int
    every_seconds: float


def combined(config: Tracing, environment: Mapping[str, str]) -> Settings | None:
    """Combine the settings: headrace's override OpenTelemetry's variables, which override the defaults.

    Args:
        config: Settings of headrace.
        environment: Environment variables.

    Returns:
        The effective settings; None if OpenTelemetry's variables disable tracing.

    Raises:
        ConfigError: A variable is invalid.
    """
    said = {name: value.strip() for name, value in environment.items() if name.startswith("OTEL_")}
    if said.get("OTEL_SDK_DISABLED", "").lower() == "true" or said.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    follows_parent, rate = _sampler(said)
    is_named = said.get("OTEL_SERVICE_NAME") or _names_service(said.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return Settings(
        endpoint=config.endpoint,
        protocol=config.protocol or _protocol(said),
        rate=rate if config.sample_rate is None else config.sample_rate,
        follows_parent=follows_parent or config.sample_rate is not None,
        most_per_second=config.max_traces_per_second,
        service_name=config.service_name or (None if is_named else "headrace"),
        most_waiting=int(_number(said, "OTEL_BSP_MAX_QUEUE_SIZE", _MOST_WAITING, 1, 2**20)),
        every_seconds=_number(said, "OTEL_BSP_SCHEDULE_DELAY", _EVERY_MS, 1, _LONGEST_PAUSE_MS) / 1000,
    )


def _names_service(attributes: str) -> bool:
    """Return whether OpenTelemetry's SDK finds the service's name in ``key=value`` pairs."""
    pairs = [pair.partition("=") for pair in attributes.split(",")]
    return any(key.strip() == "service.name" and value.strip() for key, _, value in pairs)


def _protocol(said: Mapping[str, str]) -> Literal["grpc", "http"]:
    name = next((one for one in _PROTOCOL_NAMES if said.get(one)), None)
    if name is None:
        return "grpc"
    if said[name] not in _PROTOCOLS:
        raise ConfigError(f"{name}: expected one of {', '.join(_PROTOCOLS)}, got {said[name]!r:.40}")
    return _PROTOCOLS[said[name]]


def _sampler(said: Mapping[str, str]) -> tuple[bool, float]:
    """Return whether callers' decisions are followed, and the rate."""
    name = said.get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    if name not in _SAMPLERS:
        expected = ", ".join(_SAMPLERS)
        raise ConfigError(f"OTEL_TRACES_SAMPLER: expected one of {expected}, got {name!r:.40}")
    follows, rate = _SAMPLERS[name]
    return follows, _number(said, "OTEL_TRACES_SAMPLER_ARG", 1.0, 0.0, 1.0) if rate is None else rate


def _number(said: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    word = said.get(name, "")
    if not word:
        return default
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise ConfigError(f"{name}: expected a number from {least:g} to {most:g}, got {word!r:.40}")
    return number
