"""A real ``headrace serve`` process for tests: started, watched, and ended."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import seconds_left


class RunningServer:
    """A server process on free ports.

    Attributes:
        http_port: The port of REST.
        grpc_port: The port of gRPC.
        tls: What it is asked with, if its connections are encrypted.
        output: What it printed on standard output so far.
        errors: What it wrote to standard error so far.
        common: Options that every server gets.
    """

    common: tuple[str, ...] = ("--drain-lead-seconds", "0")  # no test waits for callers it does not have

    def __init__(
        self,
        models: Path,
        *options: str,
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Start a server; use it as a context manager.

        Args:
            models: The directory of models.
            options: More options of ``headrace serve``.
            prefix: Words before the command, for example ``("taskset", "-c", "0")``.
            environment: Its environment; this process's if left out.
            tls: What it is asked with, if its connections are encrypted.
        """
        command = [*prefix, sys.executable, "-m", "headrace", "serve", str(models)]
        command += ["--http-port", "0", "--grpc-port", "0", "--poll-seconds", "0.1", *self.common, *options]
        self.output: list[str] = []
        self.errors: list[str] = []
        self._ports: queue.Queue[int] = queue.Queue()
        self.tls = tls
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**(os.environ if environment is None else environment), "NO_COLOR": "1"},
        )
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        """Wait until the ports are open and the models are loaded, or have failed to."""
        try:
            self.wait_for(lambda: self._ports.qsize() == 2, "the ports to be printed")
            self.http_port, self.grpc_port = self._ports.get(), self._ports.get()
            self.wait_for(lambda: self.get("/v2/health/ready")[0] == 200, "the server to be ready")
        except BaseException:
            self.kill()
            print("--- the server did not start ---", *self.output, *self.errors[-60:], sep="\n")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process, and show what it wrote if the test failed."""
        if self.process.returncode is None:
            self.stop()
        if kind is not None:
            print("--- the server's standard error ---", *self.errors[-60:], sep="\n")

    def stop(self, timeout_seconds: float | None = None) -> int:
        """Ask it to end, and wait for that.

        Returns:
            The exit code.
        """
        self.process.send_signal(signal.SIGTERM)
        return self.wait_until_ended(timeout_seconds)

    def kill(self) -> int:
        """End it as a crash would."""
        self.process.kill()
        return self.wait_until_ended()

    def wait_until_ended(self, timeout_seconds: float | None = None) -> int:
        """Wait for the process to end by itself; it is killed, and the test fails, if it does not.

        Returns:
            The exit code.
        """
        try:
            code = self.process.wait(seconds_left() if timeout_seconds is None else timeout_seconds)
        except BaseException:  # the time limit of a test may end this wait, too
            self.process.kill()
            self.process.wait()
            raise
        finally:
            for reader in self._readers:
                reader.join(5)
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()
        return code

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until a condition holds; fail loudly if it does not come true in time."""
        until = time.monotonic() + seconds_left()
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            if time.monotonic() > until or self.process.poll() is not None:
                said = "\n".join(self.errors[-40:])
                raise AssertionError(f"waited in vain for {what}; the server wrote:\n{said}")
            time.sleep(0.02)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One HTTP request on a connection of its own; status and body."""
        connection = (
            http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)
            if self.tls is None
            else http.client.HTTPSConnection("127.0.0.1", self.http_port, timeout=30, context=self.tls)
        )
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        """GET a path."""
        return self.request("GET", path)

    def post(self, path: str, value: object) -> tuple[int, dict[str, object]]:
        """POST a value as JSON; status and the answer's JSON."""
        status, body = self.request(
            "POST", path, json.dumps(value).encode(), {"content-type": "application/json"}
        )
        return status, json.loads(body)

    def count_in_log(self, text: str) -> int:
        """How many lines of standard error hold a text."""
        return sum(text in line for line in list(self.errors))

    def rss_bytes(self) -> int:
        """The memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found.group(1)) * 1024

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line.rstrip())
            found = re.match(r"\s*(REST|gRPC)\s+\S*?:(\d+)$", line.rstrip())
            if found:
                self._ports.put(int(found.group(2)))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.rstrip())
