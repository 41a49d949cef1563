"""From a method and a path to the handler of a REST API; paths seen before are found by one look-up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.frontends.calls import HttpHandler, HttpRoute

_PATHS_KEPT = 1024


class Match(NamedTuple):
    """Where a request goes.

    Attributes:
        handler: What answers it; None when nothing does.
        parameters: The values of the pattern's ``{names}``.
        allowed: The methods that the path has, when the path is known but not with this method.
    """

    handler: HttpHandler | None
    parameters: Mapping[str, str]
    allowed: tuple[str, ...] = ()


class Router:
    """The routes of all HTTP APIs together."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        """Compile the routes; the first that matches answers."""
        self._routes = [(route.method, _compiled(route.pattern), route.handler) for route in routes]
        self._seen: dict[tuple[str, str], Match] = {}

    def match(self, method: str, path: str) -> Match:
        """Find the handler of a request.

        Args:
            method: The HTTP method.
            path: The decoded path, without the query.
        """
        found = self._seen.get((method, path))
        if found is None:
            found = self._search(method, path)
            if (
                found.handler is not None and len(self._seen) < _PATHS_KEPT
            ):  # unknown paths are not worth remembering
                self._seen[method, path] = found
        return found

    def _search(self, method: str, path: str) -> Match:
        allowed = []
        for known, pattern, handler in self._routes:
            matched = pattern.fullmatch(path)
            if matched and known == method:
                return Match(handler, matched.groupdict())
            if matched:
                allowed.append(known)
        return Match(None, {}, tuple(sorted(set(allowed))))


def _compiled(pattern: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", pattern)
    text = "".join(
        f"(?P<{piece}>[^/:]+)" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)
    )
    return re.compile(text, re.IGNORECASE)
