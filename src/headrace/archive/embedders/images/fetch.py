"""Fetches images: from the content itself, from a URL, or from a file below a directory."""

from __future__ import annotations

import base64
import binascii
import errno
import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

from headrace.archive.embedders.images.download import DownloadLimits, download
from headrace.base.errors import shown
from headrace.base.files import read_file
from headrace.images.decoding import looks_like_image
from headrace.net.content_failures import never, not_now
from headrace.net.deadline_connection import Connector

_URLS = ("http://", "https://")
_DATA = "data:"
_LONGEST_PATH = 4096
_WILL_NOT_PASS = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES),
    *(errno.EINVAL, errno.EFBIG, errno.ELOOP, errno.ENAMETOOLONG),
}


class ImageFetcher:
    """Fetches the bytes of images. Thread-safe."""

    def __init__(self, limits: DownloadLimits, connector: Connector, directory: Path | None) -> None:
        """Set what may be fetched.

        Args:
            limits: Limits of downloads; an empty list of hosts allows none.
            connector: Opens connections.
            directory: Directory below which files may be read; None for none.
        """
        self._limits = limits
        self._connector = connector
        self._directory = None if directory is None else Path(os.path.realpath(directory))

    def get(self, content: bytes) -> bytes:
        """Return the bytes of an image.

        Args:
            content: The bytes themselves, a ``data:`` URL, a URL, or a path.

        Raises:
            Failing: The image cannot be fetched.
        """
        if looks_like_image(content):
            return self._checked(content)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise never(f"expected an image, a URL or a path, got {content[:12]!r} …") from None
        head = text[: len(_URLS[1])].lower()
        if head.startswith(_DATA):
            return self._checked(_data(text))
        if head.startswith(_URLS):
            if not self._limits.hosts:
                raise never("downloads are not allowed from any host: set hosts")
            return download(text, self._limits, self._connector)
        if "://" in text[:64]:
            raise never(f"expected a URL of http or https, got {shown(text)}")
        if self._directory is None:
            raise never(f"expected an image or a URL, got {shown(text)}; for paths, set directory")
        return self._read(self._directory, text)

    def _read(self, directory: Path, text: str) -> bytes:
        if len(text) > _LONGEST_PATH or "\0" in text:
            raise never(f"not a path: {shown(text)}")
        try:
            # Resolve links first: their target must be below the directory.
            file = Path(os.path.realpath(directory / text, strict=True))
            if not file.is_relative_to(directory):
                raise never(f"{shown(text)} is outside the allowed directory")
            return read_file(file, self._limits.most_bytes)
        except OSError as error:
            kind = never if error.errno in _WILL_NOT_PASS else not_now
            raise kind(f"{shown(text)} cannot be read: {error.strerror or error}") from error

    def _checked(self, content: bytes) -> bytes:
        most = self._limits.most_bytes
        if len(content) > most:
            raise never(f"too large: expected at most max_bytes = {most} bytes, got {len(content)}")
        return content


def _data(text: str) -> bytes:
    head, comma, data = text.partition(",")
    if not comma:
        raise never(f"expected data:TYPE;base64,…, got {shown(text)}")
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(data)
    try:
        return base64.b64decode(unquote_to_bytes(data), validate=True)
    except binascii.Error as error:
        raise never(f"invalid base64 in {shown(text)}: {error}") from error
