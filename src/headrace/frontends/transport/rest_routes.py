"""Find the handler of a REST request by method and path, with a cache of known paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.access.permissions import ANY
from headrace.frontends.calls import HttpHandler, HttpRoute, HttpStreamHandler

PATHS_KEPT = 1024
"""Number of paths remembered before those that have not been requested again are forgotten."""

# Longer than the path of any model, so no client uses longer ones regularly.
_LONGEST_PATH_KEPT = 256
_LONGEST_PATH = 2048


class Match(NamedTuple):
    """The route that a request takes.

    Attributes:
        handler: Handler of the request; None if no route matches, or its answer is a stream.
        parameters: Values of the pattern's ``{names}``.
        allowed: Methods of the path, if the path is known but not with this method.
        verbs: Verbs as bits, one of which the key must permit. Any key suffices to learn of unknown routes.
        stream: Handler of a request whose answer is a stream of events; None for any other.
    """

    handler: HttpHandler | None
    parameters: Mapping[str, str]
    allowed: tuple[str, ...] = ()
    verbs: int = ANY
    stream: HttpStreamHandler | None = None


class Router:
    """The routes of all HTTP APIs together."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        """Compile the routes; the first match handles a request."""
        self._known = tuple(routes)
        self._routes = [(_compiled(route.pattern), route) for route in self._known]
        # Two halves: paths requested since the last swap, and before it. Paths that clients invent evict
        # each other, and never one in use.
        self._recent: dict[tuple[str, str], Match] = {}
        self._older: dict[tuple[str, str], Match] = {}

    def match(self, method: str, path: str) -> Match:
        """Find the handler of a request.

        Args:
            method: HTTP method; HEAD is routed as GET.
            path: Decoded path, without the query.
        """
        found = self._recent.get((method, path))
        if found is None:
            found = self._older.get((method, path)) or self._search(method, path)
            is_known = found.handler is not None or found.stream is not None
            if is_known and len(path) <= _LONGEST_PATH_KEPT:  # unknown paths are not kept
                self._remember((method, path), found)
        return found

    def hint(self, path: str) -> str:
        """Return a hint for an unknown path: the route that ends with the same word; "" if none does.

        Args:
            path: The path, shortened.
        """
        word = re.split("[/:]", path.rstrip("/").lower())[-1]
        for route in self._known:
            if word and re.split("[/:]", route.pattern)[-1] == word:
                return f"; did you mean {route.method} {route.pattern}?"
        return ""

    def _remember(self, asked: tuple[str, str], found: Match) -> None:
        if len(self._recent) >= PATHS_KEPT:
            self._older, self._recent = self._recent, {}
        self._recent[asked] = found

    def _search(self, method: str, path: str) -> Match:
        if len(path) > _LONGEST_PATH:  # names have at most 128 characters, so nothing can match
            return Match(None, {})
        allowed, asked = [], "GET" if method == "HEAD" else method
        for pattern, route in self._routes:
            matched = pattern.fullmatch(path)
            if matched and route.method == asked:
                return Match(route.handler, matched.groupdict(), verbs=route.verbs, stream=route.stream)
            if matched:
                allowed.append(route.method)
        return Match(None, {}, tuple(sorted(set(allowed))))


def _compiled(pattern: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", pattern)
    text = "".join(
        f"(?P<{piece}>[^/:]+)" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)
    )
    return re.compile(text, re.IGNORECASE)
