"""The images of a space's keys, for a page: links to those that have an address, the files of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.archive.config import ArchiveConfig
    from headrace.archive.embedders.images.contents import Contents
    from headrace.archive.similarity.sheet import Image

_ADDRESSES = ("http://", "https://")


def images(config: ArchiveConfig, base: Path, space: str) -> Callable[[str], Image]:
    """What gives the image of a key: its address, or its bytes if the space's embedder may read the file.

    Nothing is downloaded: whoever looks at the page does that.

    Args:
        config: Of the archive.
        base: What relative paths start from.
        space: Which space.

    Raises:
        ConfigError: The embedder's settings are wrong.
    """
    from headrace.archive.contents import content_of, table_column  # noqa: PLC0415 - not for the list of verbs

    template = config.spaces[space].content
    contents = _contents(config, base, space)

    def image(key: str) -> Image:
        if table_column(template):  # it is not looked up for a page
            return None
        content = content_of(template, key)
        if content[:8].lower().startswith(tuple(map(str.encode, _ADDRESSES))):
            return content.decode()
        if contents is None:
            return None
        try:
            return contents.get(content)
        except HeadraceError:  # the page says that there is no image
            return None

    return image


def _contents(config: ArchiveConfig, base: Path, space: str) -> Contents | None:
    from headrace.archive.embedders.images.connection import (  # noqa: PLC0415 - not for the list of verbs
        Connector,
        system_addresses,
    )
    from headrace.archive.embedders.images.contents import Contents  # noqa: PLC0415 - likewise
    from headrace.archive.embedders.images.download import DownloadLimits  # noqa: PLC0415 - likewise
    from headrace.archive.embedders.opening import read_settings  # noqa: PLC0415 - likewise
    from headrace.archive.embedders.settings import ImageSettings  # noqa: PLC0415 - likewise

    name = config.spaces[space].embedder
    settings = read_settings(name, config.embedders.get(name)) if name else None
    if not isinstance(settings, ImageSettings):
        return None
    no_hosts = DownloadLimits((), (), settings.max_bytes, settings.timeout_seconds, 0)
    directory = base / settings.directory if settings.directory else None
    return Contents(no_hosts, Connector(system_addresses, (), "", 1), directory)
