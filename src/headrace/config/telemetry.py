"""Settings for observing calls: traces, the access log, and the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from headrace.config.checks import MINUTE, fraction, one_of, seconds, whole, wrong

STDOUT = Path("-")
"""The path that stands for standard output."""

_MOST_A_SECOND = 1_000_000
_LONGEST_NAME = 255


class Tracing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling and export of traces. OpenTelemetry's environment variables replace settings that are None.

    Attributes:
        enabled: Whether calls are traced; naming an endpoint also enables it.
        endpoint: The collector, as ``http://HOST:PORT`` or ``https://…``.
        protocol: The collector's protocol: OTLP over gRPC, or over HTTP.
        sample_rate: Share to record of the traces that begin at this server.
        max_traces_per_second: Maximum number of calls recorded per second, whether the caller or this server
            samples them.
        service_name: This server's name in traces.
    """

    enabled: bool = False
    endpoint: str | None = None
    protocol: Literal["grpc", "http"] | None = None
    sample_rate: float | None = None
    max_traces_per_second: int = 100
    service_name: str | None = None

    def __post_init__(self) -> None:
        """Check each setting."""
        if self.endpoint is not None and not _is_address(self.endpoint):
            raise wrong("tracing.endpoint", "an address such as http://127.0.0.1:4317", self.endpoint)
        if self.protocol is not None:
            one_of("tracing.protocol", self.protocol, ("grpc", "http"))
        if self.sample_rate is not None:
            fraction("tracing.sample_rate", self.sample_rate)
        whole("tracing.max_traces_per_second", self.max_traces_per_second, least=1, most=_MOST_A_SECOND)
        if self.service_name is not None and not 0 < len(self.service_name) <= _LONGEST_NAME:
            raise wrong(
                "tracing.service_name", f"a name of at most {_LONGEST_NAME} characters", self.service_name
            )

    @property
    def is_on(self) -> bool:
        """Whether calls are traced."""
        return self.enabled or self.endpoint is not None


def _is_address(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, or an unbalanced bracket
        return False


class AccessLog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A log with one line per call, of all calls or a sample.

    Attributes:
        path: The file; ``-`` for standard output, None for no log.
        sample: Share to log of the calls that succeeded and were not slow; all others are logged.
        slow_seconds: Duration in seconds from which an answered call counts as slow, and is always logged.
    """

    path: Path | None = None
    sample: float = 1.0
    slow_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Check each setting."""
        if self.path is not None and (not self.path.name and self.path != STDOUT):
            raise wrong("access_log.path", "a file, or - for standard output", str(self.path))
        fraction("access_log.sample", self.sample)
        seconds("access_log.slow_seconds", self.slow_seconds, most=60 * MINUTE)

    def below(self, base: Path) -> AccessLog:
        """Return a copy with a relative path resolved against a directory."""
        if self.path is None or self.path == STDOUT:
            return self
        return msgspec.structs.replace(self, path=base / self.path)


class Audit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log of administrative actions.

    Attributes:
        file: The file; None for no audit log.
    """

    file: Path | None = None

    def __post_init__(self) -> None:
        """Check the file."""
        if self.file is not None and not self.file.name:
            raise wrong("audit.file", "a file", str(self.file))

    def below(self, base: Path) -> Audit:
        """Return a copy with a relative path resolved against a directory."""
        return self if self.file is None else msgspec.structs.replace(self, file=base / self.file)
