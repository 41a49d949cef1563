"""What is told of single calls: traces, the access log, and the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from headrace.config.checks import MINUTE, fraction, one_of, seconds, whole, wrong

STDOUT = Path("-")
"""What stands for standard output where a file is expected."""

_MOST_A_SECOND = 1_000_000
_LONGEST_NAME = 255


class Tracing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which calls become spans, and where those go. What is None is OpenTelemetry's own variables' to say.

    Attributes:
        enabled: Whether calls are traced; they are, too, where an endpoint is named.
        endpoint: The collector, as ``http://HOST:PORT`` or ``https://…``.
        protocol: How it is spoken to: OTLP over gRPC, or over HTTP.
        sample_rate: Which part of the traces that begin here is recorded.
        max_traces_per_second: How many calls a second are recorded at the most, whoever wants it.
        service_name: What this server is called in traces.
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
    except ValueError:  # no number for a port, or half a pair of brackets
        return False


class AccessLog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line for each call, or for some.

    Attributes:
        path: The file; ``-`` for standard output, None for no log.
        sample: Which part of the calls is told that were answered in time; the others always are.
        slow_seconds: From how long on an answered call counts as slow, and is always told.
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
        """The same with a relative path starting from a directory."""
        if self.path is None or self.path == STDOUT:
            return self
        return msgspec.structs.replace(self, path=base / self.path)


class Audit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where it is told who changed what is served.

    Attributes:
        file: The file; None for no audit log.
    """

    file: Path | None = None

    def __post_init__(self) -> None:
        """Check it."""
        if self.file is not None and not self.file.name:
            raise wrong("audit.file", "a file", str(self.file))

    def below(self, base: Path) -> Audit:
        """The same with a relative path starting from a directory."""
        return self if self.file is None else msgspec.structs.replace(self, file=base / self.file)
