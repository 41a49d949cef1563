"""A contact sheet: groups of images as one self-contained HTML page, and the images of keys for it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from headrace.archive.embedders.embedder import ImageSettings
from headrace.archive.embedders.image_fetching import DownloadLimits, ImageFetcher
from headrace.archive.model.archive_toml import ArchiveConfig, content_of, table_column
from headrace.archive.operations.open_archive import embedder_settings
from headrace.base.errors import HeadraceError
from headrace.net.deadline_connection import Connector, system_addresses

Image = bytes | str | None
"""Bytes of an image file, its URL, or None if there is no image."""

MOST_EMBEDDED_BYTES = 64 * 1024 * 1024
"""Maximum number of image bytes embedded in a page; further images are shown as "no image"."""

_MOST_SHOWN = 24
_LONGEST_KEY = 120
_ADDRESSES = ("https://", "http://")
_KINDS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)

# The page runs no scripts and fetches only images, because keys and files may come from anyone.
_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data: https: http:; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
  body {{ font: 14px/1.45 system-ui, sans-serif; color: #2b2f36; background: #f6f7f9; margin: 2rem; }}
  h1 {{ font-size: 1.35rem; margin: 0 0 .2rem; }}
  header p {{ color: #5b616b; margin: 0 0 1.6rem; }}
  section {{ background: #fff; border: 1px solid #e3e6ea; border-radius: 10px; padding: .8rem 1rem 1rem; margin-bottom: 1rem; }}
  h2 {{ font-size: .95rem; margin: 0 0 .7rem; font-weight: 600; }}
  h2 small {{ color: #7a808a; font-weight: 400; }}
  .images {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: .8rem; }}
  figure {{ margin: 0; min-width: 0; }}
  .frame {{ height: 150px; display: flex; align-items: center; justify-content: center; background: #eef0f3; border-radius: 6px; overflow: hidden; }}
  .frame img {{ max-width: 100%; max-height: 100%; min-width: 40%; object-fit: contain; image-rendering: auto; }}
  .none {{ color: #9aa0a9; font-size: .8rem; }}
  .middle .frame {{ outline: 2px solid #4e79a7; }}
  figcaption {{ font-size: .75rem; margin-top: .3rem; overflow-wrap: anywhere; }}
  figcaption b {{ color: #4e79a7; }}
</style>
<header><h1>{title}</h1><p>{subtitle}</p></header>
"""  # noqa: E501 - a page's head is read as it is written


@dataclass(frozen=True, slots=True)
class Tile:
    """One image of a group.

    Attributes:
        key: Key of the image.
        similarity: Similarity to the first image of the group.
    """

    key: str
    similarity: float


def contact_sheet(
    groups: Sequence[Sequence[Tile]],
    image: Callable[[str], Image],
    *,
    title: str,
    subtitle: str = "",
    measure: Literal["cosine", "distance"] = "cosine",
) -> str:
    """Return a page with groups of images.

    Args:
        groups: Images of each group, the most central first; at most 24 of each are shown.
        image: Returns the image of a key: bytes are embedded in the page (PNG, JPEG, GIF, BMP and WebP), an
            http or https URL is linked. Called in order, only for images that are shown.
        title: Title of the page.
        subtitle: Text below the title.
        measure: Meaning of the similarities.

    Returns:
        The page as HTML.
    """
    left = MOST_EMBEDDED_BYTES
    parts = [_HEAD.format(title=escape(title), subtitle=escape(subtitle))]
    for number, group in enumerate(groups, 1):
        shown = group[:_MOST_SHOWN]
        more = f", {len(shown)} of them shown" if len(shown) < len(group) else ""
        parts.append(f"<section><h2>{number} <small>{len(group)} images{more}</small></h2>")
        parts.append('<div class="images">')
        for place, tile in enumerate(shown):
            source, size = _source(image(tile.key), left)
            left -= size
            parts.append(_figure(tile, source, measure if place else ""))
        parts.append("</div></section>\n")
    parts.append("</html>\n")
    return "".join(parts)


def _source(image: Image, left: int) -> tuple[str, int]:
    """Return the ``src`` of an image, "" if it has none, and the number of bytes it embeds."""
    if isinstance(image, str):
        return (image, 0) if image.lower().startswith(_ADDRESSES) else ("", 0)
    kind = "" if image is None else _kind(image)
    if image is None or not kind or len(image) > left:
        return "", 0
    return f"data:{kind};base64,{b64encode(image).decode('ascii')}", len(image)


def _kind(image: bytes) -> str:
    """Return the media type of an image by its first bytes; "" for types not to embed, such as SVG."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _KINDS if image.startswith(start)), "")


def _figure(tile: Tile, source: str, measure: str) -> str:
    key = tile.key if len(tile.key) <= _LONGEST_KEY else tile.key[: _LONGEST_KEY - 1] + "…"
    image = (
        f'<img src="{escape(source)}" alt="{escape(key)}" loading="lazy">'
        if source
        else '<span class="none">no image</span>'
    )
    told = f" <b>{tile.similarity:.4f}</b>" if measure else ""
    title = f' title="{escape(measure)} to the first"' if measure else ""
    return (
        f'<figure{"" if measure else " class=middle"}><div class="frame">{image}</div>'
        f"<figcaption{title}>{escape(key)}{told}</figcaption></figure>"
    )


def images(config: ArchiveConfig, base: Path, space: str) -> Callable[[str], Image]:
    """Return a function from a key to its image: an address, or the bytes of a file the embedder may read.

    Nothing is downloaded here; the reader's browser loads the addresses.

    Args:
        config: The archive's settings.
        base: The base directory of relative paths.
        space: The space.

    Raises:
        ConfigError: The embedder's settings are wrong.
    """
    template = config.spaces[space].content
    contents = _contents(config, base, space)

    def image(key: str) -> Image:
        if table_column(template):  # tables are not looked up for a page
            return None
        content = content_of(template, key)
        if content[:8].lower().startswith(tuple(map(str.encode, _ADDRESSES))):
            return content.decode()
        if contents is None:
            return None
        try:
            return contents.get(content)
        except HeadraceError:  # the page shows that there is no image
            return None

    return image


def _contents(config: ArchiveConfig, base: Path, space: str) -> ImageFetcher | None:
    name = config.spaces[space].embedder
    settings = embedder_settings(name, config.embedders.get(name)) if name else None
    if not isinstance(settings, ImageSettings):
        return None
    no_hosts = DownloadLimits((), (), settings.max_bytes, settings.timeout_seconds, 0)
    directory = base / settings.directory if settings.directory else None
    return ImageFetcher(no_hosts, Connector(system_addresses, (), "", 1), directory)
