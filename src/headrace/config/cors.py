"""Access from web pages: ``[cors]`` of ``headrace serve --config FILE``."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from headrace.config.checks import wrong

ANY_ORIGIN = "*"
"""The origin that stands for all origins."""

_MOST_ORIGINS = 1000
_FORM = re.compile(r"https?://[a-z0-9._-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")
_USUAL_PORTS = {"http": 80, "https": 443}
_AN_ORIGIN = (
    "origins as browsers send them, such as https://shop.example or http://localhost:3000 (lower case, no "
    f"path, no usual port), or '{ANY_ORIGIN}' alone"
)


class Cors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The web pages that may access the server from a browser.

    Attributes:
        origins: Origins of these pages; ``*`` alone for any origin, empty for none.
    """

    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check each origin: one in a form that browsers do not send would never match."""
        if len(self.origins) > _MOST_ORIGINS:
            raise wrong("cors.origins", f"at most {_MOST_ORIGINS} origins", f"{len(self.origins)}")
        if self.origins == (ANY_ORIGIN,):
            return
        for origin in self.origins:
            if not _is_origin(origin):
                raise wrong("cors.origins", _AN_ORIGIN, origin[:200])


def _is_origin(text: str) -> bool:
    if not _FORM.fullmatch(text):
        return False
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return port is None or (port > 0 and port != _USUAL_PORTS[parts.scheme])
