"""Our own settings over OpenTelemetry's variables over the defaults."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError
from headrace.config import Tracing
from headrace.telemetry.tracing.exporters import Settings, combined


def found(config: Tracing | None = None, **environment: str) -> Settings:
    made = combined(config or Tracing(), environment)
    assert made is not None
    return made


def test_the_defaults() -> None:
    assert found() == Settings(None, "grpc", 1.0, True, 100, "headrace", 4096, 1.0)


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [
        ("always_on", "", (1.0, False)),
        ("always_off", "", (0.0, False)),
        ("traceidratio", "0.25", (0.25, False)),
        ("parentbased_traceidratio", "0.25", (0.25, True)),
        ("parentbased_traceidratio", "", (1.0, True)),
        ("parentbased_always_off", "0.9", (0.0, True)),
        ("", "0.9", (1.0, True)),
    ],
)
def test_the_sampler_is_taken_from_the_variables(
    sampler: str, argument: str, expected: tuple[float, bool]
) -> None:
    made = found(OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument)
    assert (made.rate, made.follows_parent) == expected
    own = found(Tracing(sample_rate=0.5), OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument)
    assert (own.rate, own.follows_parent) == (0.5, True)


def test_the_protocol_the_name_and_the_queue_are_too() -> None:
    assert found(OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf").protocol == "http"
    both = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}
    assert found(**both).protocol == "grpc"
    assert found(Tracing(protocol="http"), **both).protocol == "http"
    assert found(OTEL_SERVICE_NAME="x").service_name is None, "the SDK reads it"
    assert found(OTEL_SERVICE_NAME="").service_name == "headrace"
    for named in ("a=b,service.name=x", "service.name = x"):
        assert found(OTEL_RESOURCE_ATTRIBUTES=named).service_name is None
    for unnamed in ("peer.service.name=x", "service.name=", "service.name"):
        assert found(OTEL_RESOURCE_ATTRIBUTES=unnamed).service_name == "headrace"
    assert found(Tracing(service_name="mine"), OTEL_SERVICE_NAME="x").service_name == "mine"
    assert found(OTEL_BSP_MAX_QUEUE_SIZE="7", OTEL_BSP_SCHEDULE_DELAY="250").most_waiting == 7
    assert found(OTEL_BSP_SCHEDULE_DELAY="250").every_seconds == 0.25


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")])
def test_the_variables_switch_it_off(name: str, value: str) -> None:
    assert combined(Tracing(enabled=True), {name: value}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
        ("OTEL_BSP_SCHEDULE_DELAY", "nan"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected .*, got '{value}'"):
        combined(Tracing(), {name: value})


def test_a_wrong_rate_is_named() -> None:
    environment = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}
    with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1"):
        combined(Tracing(), environment)
