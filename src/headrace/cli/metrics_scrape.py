"""Scraping of a running server's metrics, and the changes between two scrapes."""

from __future__ import annotations

import argparse
import http.client
import math
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.base.errors import ConfigError, Unavailable
from headrace.cli import number_types
from headrace.client.rest import Address, check_encrypted, read_address, token_in
from headrace.config.checks import MINUTE
from headrace.net.client_tls import client_context

_PATH, _INDEX_PATH = "/metrics", "/v2/repository/index"
_DEFAULT_URL = "http://127.0.0.1:8501"
_TIMEOUT_SECONDS = 10.0
_MOST_BYTES = 64 * 1024 * 1024
_OK, _UNAUTHORIZED, _FORBIDDEN = 200, 401, 403

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """A server's metrics at one moment.

    Attributes:
        at: Time of the scrape on the monotonic clock.
        values: Values by metric name, and within that by labels.
    """

    at: float
    values: Mapping[str, Mapping[Labels, float]]

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return the series of a name that have these labels."""
        wanted = labels.items()
        return {key: value for key, value in self.values.get(name, {}).items() if wanted <= dict(key).items()}

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the matching series; 0 without any."""
        return sum(self.of(name, **labels).values())

    def one(self, name: str, **labels: str) -> float | None:
        """Return the value of the only or first matching series; None without any."""
        return next(iter(self.of(name, **labels).values()), None)


class Failure(NamedTuple):
    """The reason why a version failed to load, or why a model has no versions.

    Attributes:
        model: The model's name.
        version: The version; "" for a model without versions.
        reason: The reason.
    """

    model: str
    version: str
    reason: str


class _Entry(msgspec.Struct):
    """A version's entry in the repository index of the Open Inference Protocol."""

    name: str
    version: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MetricsClient:
    """A client for the metrics of one server.

    Attributes:
        name: The server's URL, for messages.
        address: The server's address.
        token: The token sent as ``Authorization: Bearer …``; "" for none.
        trust: Trusted certificates for https, and the client's own certificate; None for plain http.
    """

    name: str
    address: Address
    token: str = field(default="", repr=False)
    trust: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, url: str, token_file: Path | None = None, ca_file: Path | None = None, *own: Path | None
    ) -> MetricsClient:
        """Create a client from the values of the command line.

        Args:
            url: The server's address, such as ``http://127.0.0.1:8501``; the scheme may be left out.
            token_file: File with the token; None for none.
            ca_file: File with trusted certificates; None for the system's.
            own: The client's certificate, and its key if that is in a separate file.

        Raises:
            ConfigError: The URL is invalid, a file cannot be read, or the token would be sent unencrypted to
                another machine.
        """
        with_scheme = url if "://" in url else f"http://{url}"
        address = read_address(with_scheme)
        token = "" if token_file is None else token_in(token_file, f"token-file: {token_file}")
        check_encrypted(token, address)
        return cls(
            with_scheme.rstrip("/"), address, token, _trust(ca_file, *own) if address.is_secure else None
        )

    def scrape(self) -> Scrape:
        """Scrape the server once.

        Raises:
            ConfigError: The server refuses access, or serves no metrics at this address.
            Unavailable: The server does not answer, or not before the timeout.
        """
        try:
            status, body = self._ask("GET", _PATH)
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = str(error) or type(error).__name__
            hint = "; is the server running there?" if isinstance(error, ConnectionRefusedError) else ""
            raise Unavailable(f"{self.name}: its metrics cannot be read: {said}{hint}") from error
        if status in {_UNAUTHORIZED, _FORBIDDEN}:
            how = "the token is not accepted" if self.token else "a token is required: --token-file FILE"
            raise ConfigError(f"{self.name} answers {status}: {how}")
        if status != _OK:
            raise ConfigError(
                f"{self.name}{_PATH} answers {status}; expected the HTTP port of headrace serve"
            )
        return Scrape(time.monotonic(), parsed(body.decode("utf-8", "replace")))

    def failures(self) -> tuple[Failure, ...]:
        """Return why versions failed to load, if the server tells this caller; empty otherwise."""
        try:
            status, body = self._ask("POST", _INDEX_PATH)
            entries = msgspec.json.decode(body, type=list[_Entry]) if status == _OK else []
        except (OSError, http.client.HTTPException, ValueError, msgspec.MsgspecError):
            return ()
        return tuple(Failure(one.name, one.version, one.reason) for one in entries if one.reason)

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        host, port = self.address.host, self.address.port
        connection: http.client.HTTPConnection
        if self.trust is not None:
            connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_SECONDS, context=self.trust)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
        headers = {"accept": "text/plain", "accept-encoding": "identity"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, self.address.prefix + path, headers=headers)
            reply = connection.getresponse()
            body = reply.read(_MOST_BYTES + 1)
        finally:
            connection.close()
        if len(body) > _MOST_BYTES:
            raise ValueError(f"the answer is larger than {_MOST_BYTES} bytes")
        return reply.status, body


def _trust(ca_file: Path | None, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Return the TLS context of a client: its trusted certificates and its own certificate.

    Raises:
        ConfigError: A file is missing, or is not of the expected kind.
    """
    if key is not None and certificate is None:
        raise ConfigError("key-file: the key needs its certificate, too: --certificate-file FILE")
    return client_context(ca_file, certificate, key, name_of=lambda name: name.replace("_", "-"))


def parsed(text: str) -> dict[str, dict[Labels, float]]:
    """Parse Prometheus' text format.

    Raises:
        ConfigError: The text is in another format, or not from a headrace server.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - only if requested

    values: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values.setdefault(sample.name, {})[tuple(sample.labels.items())] = sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"the answer is not Prometheus text: {error}") from error
    if "headrace_ready" not in values:
        raise ConfigError("the answer is not from a headrace server: it has no metric headrace_ready")
    return values


@dataclass(frozen=True, slots=True)
class Interval:
    """The interval between two scrapes of one server.

    Attributes:
        before: The earlier scrape.
        after: The later scrape.
    """

    before: Scrape
    after: Scrape

    @property
    def seconds(self) -> float:
        """Length of the interval in seconds."""
        return max(1e-9, self.after.at - self.before.at)

    def growth(self, name: str, **labels: str) -> float:
        """Return the total growth of counters; a counter that fell (new process) counts from 0."""
        earlier = self.before.of(name, **labels)
        grown = 0.0
        for key, value in self.after.of(name, **labels).items():
            was = earlier.get(key, 0.0)
            grown += value - was if value >= was else value
        return grown

    def rate(self, name: str, **labels: str) -> float:
        """Return the growth of counters per second."""
        return self.growth(name, **labels) / self.seconds

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """Return a quantile of a histogram, estimated as in Prometheus; None without observations."""
        earlier = self.before.of(f"{name}_bucket", **labels)
        buckets = sorted(_bounds(earlier, self.after.of(f"{name}_bucket", **labels)))
        if not buckets or buckets[-1][1] <= 0:
            return None
        rank = share * buckets[-1][1]
        start, below = 0.0, 0.0
        for bound, count in buckets:
            if count >= rank and count > below:
                return (
                    start if math.isinf(bound) else start + (bound - start) * (rank - below) / (count - below)
                )
            start, below = bound, count
        return None


def _bounds(earlier: Mapping[Labels, float], later: Mapping[Labels, float]) -> Iterator[tuple[float, float]]:
    """Yield each bucket's bound and growth, summed over series."""
    grown: dict[float, float] = {}
    for key, value in later.items():
        bound = float(dict(key)["le"])
        was = earlier.get(key, 0.0)
        grown[bound] = grown.get(bound, 0.0) + (value - was if value >= was else value)
    yield from grown.items()


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the server and how to ask it."""
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        default=_DEFAULT_URL,
        help=f"the server's HTTP address (default {_DEFAULT_URL})",
    )
    parser.add_argument(
        "--interval-seconds",
        type=number_types.above_zero("interval-seconds", most=MINUTE),
        default=1.0,
        metavar="S",
        help="the time between two requests (default 1)",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="send the API key or token in this file"
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="trust the certificates in this file, not the system's"
    )
    parser.add_argument(
        "--certificate-file",
        type=Path,
        metavar="FILE",
        help="the client's own certificate (PEM), if the server requires one",
    )
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="its private key, if that is in a separate file"
    )


def metrics_client(options: argparse.Namespace) -> MetricsClient:
    """Return the client of the server that the options name.

    Raises:
        ConfigError: An option is wrong.
    """
    own = options.certificate_file, options.key_file
    return MetricsClient.of(options.url, options.token_file, options.ca_file, *own)
