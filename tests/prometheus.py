"""A real Prometheus for tests: started on a port of its own, asked over its API, and ended."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

PATIENCE_SECONDS = 90.0
EVERY = "500ms"


class Prometheus:
    """One that scrapes twice a second; use ``scraping``.

    Attributes:
        port: Where it is asked.
    """

    def __init__(self, folder: Path, scrapes: Sequence[dict[str, object]], rules: str) -> None:
        (folder / "alerts.yml").write_text(rules)
        every = {"scrape_interval": EVERY, "evaluation_interval": EVERY, "scrape_timeout": EVERY}
        settings = {"global": every, "rule_files": ["alerts.yml"], "scrape_configs": scrapes}
        (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
        ]
        command += [f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _asked(self, path: str) -> Any:
        """What it says; None while it begins."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            said = reply.read()
        except OSError:  # it has just been started
            return None
        finally:
            connection.close()
        return json.loads(said)["data"] if reply.status == 200 else None  # 503: it begins

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        alerts = (self._asked("/api/v1/alerts") or {}).get("alerts", [])
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def values(self, expression: str) -> list[float]:
        """What an expression is now, of each series."""
        found = (self._asked(f"/api/v1/query?query={quote(expression)}") or {}).get("result", [])
        return [float(one["value"][1]) for one in found]

    def wait_for_alerts(self, names: set[str]) -> None:
        """Wait until each has fired once."""
        until, fired = time.monotonic() + PATIENCE_SECONDS, set[str]()
        while not names <= fired:
            assert self.process.poll() is None, "prometheus has ended"
            assert time.monotonic() < until, f"did not fire: {names - fired}"
            fired |= self.firing()
            time.sleep(0.1)


@contextmanager
def scraping(folder: Path, *scrapes: dict[str, object], rules: str = "groups: []\n") -> Iterator[Prometheus]:
    """Start one.

    Args:
        folder: A folder of its own, which is made.
        scrapes: What it scrapes, as its settings say it.
        rules: A file of rules.
    """
    folder.mkdir()
    prometheus = Prometheus(folder, scrapes, rules)
    try:
        yield prometheus
    finally:
        prometheus.process.terminate()
        prometheus.process.wait()
