"""A server of images that does whatever a path says: real sockets, every trick by hand."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

Handler = Callable[[socket.socket, str], object]


def answer(
    body: bytes, status: str = "200 OK", *headers: str, length: bool = True
) -> Callable[[socket.socket, str], None]:
    """A handler that answers what is given."""
    told = [*headers, f"Content-Length: {len(body)}"] if length else list(headers)
    head = "\r\n".join([f"HTTP/1.1 {status}", *told, "", ""]).encode()

    def handle(connection: socket.socket, _head: str) -> None:
        connection.sendall(head + body)

    return handle


def redirect(where: str, status: str = "302 Found") -> Handler:
    """A handler that sends elsewhere."""
    return answer(b"", status, f"Location: {where}")


class HostileServer:
    """Answers each path by its handler, in a thread a connection; counts what it was asked for.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        asked: The paths, in the order they came in.
        handlers: By path; others are not found.
        ended: Set when it is closed: what waits for it goes on.
    """

    def __init__(self, handlers: dict[str, Handler], tls: ssl.SSLContext | None = None) -> None:
        """Listen."""
        self.handlers = handlers
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.ended = threading.Event()
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._socket.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        """A URL of this server's."""
        return f"{scheme}://{host}:{self.port}{path}"

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError):
                connection.settimeout(30)
                if self._tls:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                self._answer(connection)
        finally:
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(65536)
            if not piece:
                return
            head += piece
        text = head.decode("latin-1")
        path = text.split(" ")[1]
        self.heads.append(text)
        self.asked.append(path)
        self.handlers.get(path, answer(b"", "404 Not Found"))(connection, text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(timeout=120)
            assert not thread.is_alive()
