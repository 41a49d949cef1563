"""Where the content of a key comes from: the key itself, or an address that it is part of."""

from __future__ import annotations

from urllib.parse import quote

from headrace.errors import ConfigError

KEY = "{key}"
"""What stands for the key in a template."""


def check_template(template: str) -> None:
    """Refuse a template that does not hold the key.

    Raises:
        ConfigError: It does not.
    """
    if KEY not in template:
        raise ConfigError(f"content: expected a text with {KEY} in it, got {template!r}")


def content_of(template: str, key: str) -> bytes:
    """The content of a key.

    Args:
        template: A text with ``{key}`` in it. Within a longer text, as an address is, the key is
            percent-encoded: it cannot lead out of its place.
        key: The key.
    """
    if template == KEY:
        return key.encode()
    return template.replace(KEY, quote(key, safe="")).encode()
