"""From a method and a path to the handler of a REST API; paths seen before are found by one look-up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.access.verbs import ANY
from headrace.frontends.calls import HttpHandler, HttpRoute

PATHS_KEPT = 1024
"""How many paths are remembered before those that nobody has asked for again are forgotten."""

# Longer than the path of any model that can be: what is longer is no client's usual path.
_LONGEST_PATH_KEPT = 256
_LONGEST_PATH = 2048


class Match(NamedTuple):
    """Where a request goes.

    Attributes:
        handler: What answers it; None when nothing does.
        parameters: The values of the pattern's ``{names}``.
        allowed: The methods that the path has, when the path is known but not with this method.
        verbs: A key must permit one of them, as bits; what is not here is told to whoever has a key.
    """

    handler: HttpHandler | None
    parameters: Mapping[str, str]
    allowed: tuple[str, ...] = ()
    verbs: int = ANY


class Router:
    """The routes of all HTTP APIs together."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        """Compile the routes; the first that matches answers."""
        self._routes = [
            (route.method, _compiled(route.pattern), route.handler, route.verbs) for route in routes
        ]
        # Two halves: what was asked for since the last turn, and before it. Paths that clients make up push
        # out one another, and never one that is in use.
        self._recent: dict[tuple[str, str], Match] = {}
        self._older: dict[tuple[str, str], Match] = {}

    def match(self, method: str, path: str) -> Match:
        """Find the handler of a request.

        Args:
            method: The HTTP method; HEAD goes where GET goes.
            path: The decoded path, without the query.
        """
        found = self._recent.get((method, path))
        if found is None:
            found = self._older.get((method, path)) or self._search(method, path)
            if found.handler is not None and len(path) <= _LONGEST_PATH_KEPT:  # unknown ones are not worth it
                self._remember((method, path), found)
        return found

    def _remember(self, asked: tuple[str, str], found: Match) -> None:
        if len(self._recent) >= PATHS_KEPT:
            self._older, self._recent = self._recent, {}
        self._recent[asked] = found

    def _search(self, method: str, path: str) -> Match:
        if len(path) > _LONGEST_PATH:  # names have 128 characters at most: there is nothing to be found
            return Match(None, {})
        allowed, asked = [], "GET" if method == "HEAD" else method
        for known, pattern, handler, verbs in self._routes:
            matched = pattern.fullmatch(path)
            if matched and known == asked:
                return Match(handler, matched.groupdict(), verbs=verbs)
            if matched:
                allowed.append(known)
        return Match(None, {}, tuple(sorted(set(allowed))))


def _compiled(pattern: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", pattern)
    text = "".join(
        f"(?P<{piece}>[^/:]+)" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)
    )
    return re.compile(text, re.IGNORECASE)
