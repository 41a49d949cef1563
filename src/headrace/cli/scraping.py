"""How a verb asks a running server for its metrics, and what two scrapes say of the time between them."""

from __future__ import annotations

import argparse
import http.client
import math
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.cli import numbers
from headrace.config.checks import MINUTE
from headrace.disk import read_text
from headrace.errors import ConfigError, Unavailable

_PATH, _INDEX_PATH = "/metrics", "/v2/repository/index"
_TIMEOUT_SECONDS = 10.0
_MOST_BYTES = 64 * 1024 * 1024
_MOST_TOKEN_BYTES = 64 * 1024
_OK, _UNAUTHORIZED, _FORBIDDEN = 200, 401, 403

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a server's metrics said at one moment.

    Attributes:
        at: On the monotonic clock.
        values: By name, and within that by labels.
    """

    at: float
    values: Mapping[str, Mapping[Labels, float]]

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """The series of a name that have these labels."""
        wanted = labels.items()
        return {key: value for key, value in self.values.get(name, {}).items() if wanted <= dict(key).items()}

    def total(self, name: str, **labels: str) -> float:
        """The sum of these series; 0 without any."""
        return sum(self.of(name, **labels).values())

    def one(self, name: str, **labels: str) -> float | None:
        """The value of the only such series, or the first one; None without any."""
        return next(iter(self.of(name, **labels).values()), None)


class Failure(NamedTuple):
    """Why a version does not load, or a model has none.

    Attributes:
        model: The model.
        version: The version; "" where there is none.
        reason: Why.
    """

    model: str
    version: str
    reason: str


class _Entry(msgspec.Struct):
    """What the index of the Open Inference Protocol says of a version."""

    name: str
    version: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A server that is asked for its metrics.

    Attributes:
        url: Its address, such as ``http://127.0.0.1:8501``.
        token: What is sent as ``Authorization: Bearer …``; "" for nothing.
        trust: Whose certificates are trusted over https, and the client's own; None for plain http.
    """

    url: urllib.parse.SplitResult
    token: str = field(default="", repr=False)
    trust: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, url: str, token_file: Path | None = None, ca_file: Path | None = None, *own: Path | None
    ) -> Source:
        """Check what the command line says.

        Args:
            url: The server's address.
            token_file: What holds the token; None for none.
            ca_file: The certificates that are trusted; None for those of the system.
            own: The client's own certificate, and its key if that is in a file of its own.

        Raises:
            ConfigError: The URL is none, or a file cannot be read.
        """
        with_scheme = url if "://" in url else f"http://{url}"
        try:
            parts = urllib.parse.urlsplit(with_scheme)
            _ = parts.port
        except ValueError as error:
            raise ConfigError(f"URL: expected http://HOST:PORT, got {url!r}: {error}") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"URL: expected http://HOST:PORT or https://HOST:PORT, got {url!r}")
        token = ""
        if token_file is not None:
            try:
                token = read_text(token_file, _MOST_TOKEN_BYTES).strip()
            except OSError as error:
                raise _unusable("token-file", token_file, error) from error
            if not token or any(not "!" <= character <= "~" for character in token):
                raise ConfigError(f"token-file: expected one token without spaces in {token_file}")
        return cls(parts, token, _trust(ca_file, *own) if parts.scheme == "https" else None)

    def scrape(self) -> Scrape:
        """Ask once.

        Raises:
            ConfigError: The server does not let the caller in, or has no metrics there.
            Unavailable: Nobody answers, or not in time.
        """
        try:
            status, body = self._ask("GET", _PATH)
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = str(error) or type(error).__name__
            raise Unavailable(f"{self.name} does not answer: {said}; is it running there?") from error
        if status in {_UNAUTHORIZED, _FORBIDDEN}:
            how = "its token is not let in" if self.token else "it wants a token: --token-file FILE"
            raise ConfigError(f"{self.name} answers {status}: {how}")
        if status != _OK:
            raise ConfigError(
                f"{self.name}{_PATH} answers {status}; expected the HTTP port of headrace serve"
            )
        return Scrape(time.monotonic(), parsed(body.decode("utf-8", "replace")))

    @property
    def name(self) -> str:
        """How people call it."""
        return f"{self.url.scheme}://{self.url.netloc.rpartition('@')[2]}{self.url.path.rstrip('/')}"

    def failures(self) -> tuple[Failure, ...]:
        """Why versions do not load, as far as the server tells it whoever asks; none where it does not."""
        try:
            status, body = self._ask("POST", _INDEX_PATH)
            entries = msgspec.json.decode(body, type=list[_Entry]) if status == _OK else []
        except (OSError, http.client.HTTPException, ValueError, msgspec.MsgspecError):
            return ()
        return tuple(Failure(one.name, one.version, one.reason) for one in entries if one.reason)

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        host, port = self.url.hostname or "", self.url.port
        connection: http.client.HTTPConnection
        if self.trust is not None:
            connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_SECONDS, context=self.trust)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
        headers = {"accept": "text/plain", "accept-encoding": "identity"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, self.url.path.rstrip("/") + path, headers=headers)
            reply = connection.getresponse()
            body = reply.read(_MOST_BYTES + 1)
        finally:
            connection.close()
        if len(body) > _MOST_BYTES:
            raise ValueError(f"its answer is more than {_MOST_BYTES} bytes")
        return reply.status, body


def _trust(ca_file: Path | None, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """What a client of a server with TLS trusts, and shows of itself.

    Raises:
        ConfigError: A file is not there, or is none of that kind.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise _unusable("ca-file", ca_file, error) from error
    if key is not None and certificate is None:
        raise ConfigError("key-file: is the key of a certificate; name that, too: --certificate-file FILE")
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password=str)  # "": nobody is asked for one
        except OSError as error:
            files = f"{certificate}, or its key {key}" if key else f"{certificate} with its key in it"
            raise _unusable("certificate-file", files, error) from error
    return context


def _unusable(option: str, file: object, error: OSError) -> ConfigError:
    return ConfigError(f"{option}: {file} cannot be used: {error.strerror or error}")


def parsed(text: str) -> dict[str, dict[Labels, float]]:
    """The values in Prometheus' text format.

    Raises:
        ConfigError: It is none.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - only where asked

    values: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values.setdefault(sample.name, {})[tuple(sample.labels.items())] = sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"what answers there is no Prometheus text: {error}") from error
    if "headrace_ready" not in values:
        raise ConfigError("what answers there is no headrace server: it has no metric headrace_ready")
    return values


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened between two scrapes of one server.

    Attributes:
        before: The earlier one.
        after: The later one.
    """

    before: Scrape
    after: Scrape

    @property
    def seconds(self) -> float:
        """How long it was."""
        return max(1e-9, self.after.at - self.before.at)

    def growth(self, name: str, **labels: str) -> float:
        """How much counters grew, together; one that fell (another process) counts from 0."""
        earlier = self.before.of(name, **labels)
        grown = 0.0
        for key, value in self.after.of(name, **labels).items():
            was = earlier.get(key, 0.0)
            grown += value - was if value >= was else value
        return grown

    def rate(self, name: str, **labels: str) -> float:
        """The same for each second."""
        return self.growth(name, **labels) / self.seconds

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """A quantile of a histogram, as Prometheus would estimate it; None where nothing was observed."""
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
    """Each bucket's bound and growth, summed over series."""
    grown: dict[float, float] = {}
    for key, value in later.items():
        bound = float(dict(key)["le"])
        was = earlier.get(key, 0.0)
        grown[bound] = grown.get(bound, 0.0) + (value - was if value >= was else value)
    yield from grown.items()


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add which server is asked, and how."""
    parser.add_argument("url", metavar="URL", help="the server's HTTP address, such as http://127.0.0.1:8501")
    parser.add_argument(
        "--interval-seconds",
        type=numbers.above_zero("interval-seconds", most=MINUTE),
        default=1.0,
        metavar="S",
        help="the time between two looks (default 1)",
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
        help="the client's own certificate (PEM), where the server wants one",
    )
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="its private key, if that is in a file of its own"
    )


def source(options: argparse.Namespace) -> Source:
    """The server that the options name.

    Raises:
        ConfigError: One of them is wrong.
    """
    own = options.certificate_file, options.key_file
    return Source.of(options.url, options.token_file, options.ca_file, *own)
