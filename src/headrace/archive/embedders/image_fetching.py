"""Fetches images: from the content itself, from a URL, or from a file below a directory.

Downloads have limits on size, time, hosts and addresses.
"""

from __future__ import annotations

import base64
import binascii
import errno
import http.client
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote_to_bytes, urljoin

from headrace.base.errors import shown
from headrace.base.files import read_file
from headrace.images.decoding import looks_like_image
from headrace.net.allowed_destinations import Target, target
from headrace.net.content_failures import Failing, never, not_now
from headrace.net.deadline_connection import Connection, Connector

if TYPE_CHECKING:
    import socket

_PIECE_BYTES = 65_536
_OK = 200
_REDIRECTS = (301, 302, 303, 307, 308)
_MAY_PASS = (408, 421, 425, 429)
_SERVER_ERRORS = 500
_REQUEST = (
    "GET {path} HTTP/1.1\r\nHost: {origin}\r\nUser-Agent: headrace\r\nAccept: image/*\r\n"
    "Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """Limits of downloads.

    Attributes:
        hosts: Allowed hosts; see ``urls.target``.
        ports: Allowed ports; see ``urls.target``.
        most_bytes: Maximum size of a body in bytes.
        timeout_seconds: Timeout in seconds until the end of the body, including redirects.
        most_redirects: Maximum number of successive redirects.
    """

    hosts: Sequence[str]
    ports: Sequence[int]
    most_bytes: int
    timeout_seconds: float
    most_redirects: int


def download(url: str, limits: DownloadLimits, connector: Connector) -> bytes:
    """Download a URL, following redirects; each redirect is checked in the same way.

    Raises:
        Failing: The download failed, or the URL or body is not allowed.
    """
    deadline = time.monotonic() + limits.timeout_seconds
    asked = target(url, limits.hosts, limits.ports)
    for _ in range(limits.most_redirects + 1):
        answer = _ask(asked, limits, connector, deadline)
        if isinstance(answer, bytes):
            return answer
        was, asked = asked, target(answer, limits.hosts, limits.ports)
        if was.scheme == "https" and asked.scheme != "https":
            raise never(f"{shown(was.host)} redirects from https to {asked.scheme}")
    raise never(f"more than {limits.most_redirects} redirects")


def _ask(asked: Target, limits: DownloadLimits, connector: Connector, deadline: float) -> bytes | str:
    """Return the body, or the URL of a redirect."""
    try:
        connection = connector.open(asked, deadline)
        try:
            request = _REQUEST.format(path=asked.path, origin=asked.origin)
            connection.send(request.encode("ascii"))
            return _answer(asked, connection, limits)
        finally:
            connection.close()
    except TimeoutError as error:
        seconds = limits.timeout_seconds
        raise not_now(f"{shown(asked.host)} took longer than {seconds:g} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise not_now(f"{shown(asked.host)} closed the connection, or does not speak HTTP: {said}") from error


def _answer(asked: Target, connection: Connection, limits: DownloadLimits) -> bytes | str:
    # HTTPResponse calls only ``makefile`` of a socket.
    response = http.client.HTTPResponse(cast("socket.socket", connection), method="GET")
    try:
        response.begin()
        if response.status in _REDIRECTS:
            return _redirected(asked, response)
        if response.status != _OK:
            raise _refused(asked, response)
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity":
            raise never(
                f"{shown(asked.host)} sent a body encoded as {shown(encoding)}, which was not requested"
            )
        return _body(asked, response, limits.most_bytes)
    finally:
        response.close()


def _body(asked: Target, response: http.client.HTTPResponse, most_bytes: int) -> bytes:
    if response.length is not None and response.length > most_bytes:
        raise _too_large(most_bytes, f"{response.length}")
    body = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
        if len(body) > most_bytes:
            raise _too_large(most_bytes, "more")
    if response.length:
        raise not_now(f"{shown(asked.host)} closed the connection {response.length} bytes before the end")
    return bytes(body)


def _too_large(most_bytes: int, got: str) -> Failing:
    return never(f"too large: expected at most max_bytes = {most_bytes} bytes, got {got}")


def _redirected(asked: Target, response: http.client.HTTPResponse) -> str:
    location = response.headers.get("Location", "")
    if not location:
        raise never(f"{shown(asked.host)} answered {response.status} without a Location header")
    with suppress(UnicodeError):  # http.client decodes headers as Latin-1; the URL may be in UTF-8
        location = location.encode("latin-1").decode()
    try:
        return urljoin(f"{asked.scheme}://{asked.origin}{asked.path}", location)
    except ValueError as error:
        raise never(f"{shown(asked.host)} redirects to {shown(location)}: {error}") from error


def _refused(asked: Target, response: http.client.HTTPResponse) -> Failing:
    said = f"{shown(asked.host)} answered {response.status} {shown(response.reason)}"
    if response.status < _SERVER_ERRORS and response.status not in _MAY_PASS:
        return never(said)
    after = response.headers.get("Retry-After")
    return not_now(f"{said}; Retry-After {shown(after)}" if after else said)


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
