"""Images of a space's keys for an HTML page: links for web addresses, file contents for other keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.archive.embedders.image_fetching import ImageFetcher
    from headrace.archive.model.archive_toml import ArchiveConfig
    from headrace.cli.archive.contact_sheet import Image

_ADDRESSES = ("http://", "https://")


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
    from headrace.archive.model.contents import content_of, table_column  # noqa: PLC0415 - not needed to list the verbs

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
    from headrace.archive.embedders.embedder import ImageSettings  # noqa: PLC0415 - as above
    from headrace.archive.embedders.image_fetching import DownloadLimits, ImageFetcher  # noqa: PLC0415
    from headrace.archive.embedders.open_embedders import read_settings  # noqa: PLC0415 - as above
    from headrace.net.deadline_connection import (  # noqa: PLC0415 - not needed to list the verbs
        Connector,
        system_addresses,
    )

    name = config.spaces[space].embedder
    settings = read_settings(name, config.embedders.get(name)) if name else None
    if not isinstance(settings, ImageSettings):
        return None
    no_hosts = DownloadLimits((), (), settings.max_bytes, settings.timeout_seconds, 0)
    directory = base / settings.directory if settings.directory else None
    return ImageFetcher(no_hosts, Connector(system_addresses, (), "", 1), directory)
