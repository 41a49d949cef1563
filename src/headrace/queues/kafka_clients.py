"""What Kafka's clients are told: where brokers are, how to log in, and after what time to give up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headrace.disk import read_text
from headrace.errors import ConfigError, Unavailable
from headrace.queues.settings import KafkaQueue

LOGGER = logging.getLogger(__name__)

_LONGEST_PASSWORD_BYTES = 4096
_LONGEST_RECONNECT_SECONDS = 1.0
_CRITICAL = 2  # of syslog's levels
_WAYS_OUT = {
    KafkaError._AUTHENTICATION: "check queue.user, queue.password_file and queue.mechanism",
    KafkaError._SSL: "check queue.tls and queue.ca_file",
}


class Refusal:
    """Why brokers do not let a client in, which it says by itself; its calls only say that time is over.

    Attributes:
        said: What it said last; "" for nothing.
    """

    def __init__(self) -> None:
        """Have heard nothing."""
        self.said = ""

    def __call__(self, error: KafkaError) -> None:
        """Hear an error: the client's ``error_cb``, called while somebody polls it."""
        way_out = _WAYS_OUT.get(error.code())
        if way_out:
            self.said = f"{error.str()}: {way_out}"


def client_settings(settings: KafkaQueue) -> dict[str, Any]:
    """What all kinds of clients are told.

    Args:
        settings: Of the queue.

    Raises:
        ConfigError: The password cannot be read.
    """
    timeout_milliseconds = int(settings.timeout_seconds * 1000)
    client: dict[str, Any] = {
        "bootstrap.servers": ",".join(settings.servers),
        "client.id": "headrace",
        "security.protocol": ("SASL_" if settings.user else "") + ("SSL" if settings.tls else "PLAINTEXT"),
        "socket.timeout.ms": max(1000, timeout_milliseconds),
        "reconnect.backoff.max.ms": int(_LONGEST_RECONNECT_SECONDS * 1000),
        "allow.auto.create.topics": False,
        "error_cb": lambda _: None,
        "logger": LOGGER,
        "log_level": _CRITICAL,  # that a broker cannot be reached is told by each call, and each second here
    }
    files = {
        "ssl.ca.location": settings.ca_file,
        "ssl.certificate.location": settings.certificate_file,
        "ssl.key.location": settings.key_file,
    }
    client |= {key: str(file) for key, file in files.items() if file is not None}
    if settings.user and settings.password_file is not None:
        try:
            password = read_text(settings.password_file, _LONGEST_PASSWORD_BYTES)
        except OSError as error:
            raise ConfigError(f"queue.password_file: {settings.password_file}: {error}") from error
        client |= {
            "sasl.mechanism": settings.mechanism,
            "sasl.username": settings.user,
            "sasl.password": password.rstrip("\r\n"),
        }
    return client


def made(kind: Callable[[dict[str, Any]], Any], client: dict[str, Any]) -> Any:
    """Make a client.

    Raises:
        ConfigError: It does not take its settings, as when a file of certificates is none.
    """
    try:
        return kind(client)
    except KafkaException as error:
        raise ConfigError(f"queue: Kafka's client does not take the settings: {reason(error)}") from error


def reason(error: KafkaException) -> str:
    """What an exception of the client's says."""
    told = error.args[0] if error.args else error
    return str(told.str()) if isinstance(told, KafkaError) else str(told)


def unavailable(what: str, error: object) -> Unavailable:
    """The error for a broker that does not answer, or refuses."""
    return Unavailable(f"Kafka: {what}: {error}", told="the queue does not answer")
