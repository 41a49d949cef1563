"""Settings of Kafka's clients: addresses of brokers, login and timeouts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headrace.base.errors import ConfigError, Unavailable
from headrace.base.files import read_text
from headrace.storage.settings import KafkaQueue

LOGGER = logging.getLogger(__name__)

_LONGEST_PASSWORD_BYTES = 4096
_LONGEST_RECONNECT_SECONDS = 1.0
_CRITICAL = 2  # syslog level
_WAYS_OUT = {
    KafkaError._AUTHENTICATION: "check queue.user, queue.password_file and queue.mechanism",
    KafkaError._SSL: "check queue.tls and queue.ca_file",
}


class Refusal:
    """Records why brokers refuse a client. Only its error callback gets the reason; its calls just time out.

    Attributes:
        said: Last reason; "" if there is none.
    """

    def __init__(self) -> None:
        """Start without a reason."""
        self.said = ""

    def __call__(self, error: KafkaError) -> None:
        """Record an error; this is the client's ``error_cb``, called while the client is polled."""
        way_out = _WAYS_OUT.get(error.code())
        if way_out:
            self.said = f"{error.str()}: {way_out}"


def client_settings(settings: KafkaQueue) -> dict[str, Any]:
    """Return the settings common to all kinds of clients.

    Args:
        settings: Settings of the queue.

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
        "log_level": _CRITICAL,  # calls report an unreachable broker; the client would log it each second
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
    """Create a client.

    Raises:
        ConfigError: The client rejects its settings, for example an invalid certificate file.
    """
    try:
        return kind(client)
    except KafkaException as error:
        raise ConfigError(f"queue: Kafka's client rejects the settings: {reason(error)}") from error


def reason(error: KafkaException) -> str:
    """Return the text of an exception of the client."""
    told = error.args[0] if error.args else error
    return str(told.str()) if isinstance(told, KafkaError) else str(told)


def unavailable(what: str, error: object) -> Unavailable:
    """Return the error for a broker that does not answer or refuses a request."""
    return Unavailable(f"Kafka: {what}: {error}", told="the queue does not answer")
