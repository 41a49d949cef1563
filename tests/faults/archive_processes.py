"""An archive's fillers as processes, and their encoder: a model of another server, which counts.

It writes down what it embeds, for all processes together.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from headrace.archive.lookup.archive import Archive
from tests.running_server import RunningServer
from tests.waiting import until

BATCH, THREADS = 4, 2
_HEADRACE = (sys.executable, "-m", "headrace", "archive")

MODEL = """
import time
from pathlib import Path

import numpy as np


class Model:
    inputs = [("content", "BYTES", [])]
    outputs = [("vector", "FP32", [DIMENSION])]

    def load(self, path, context):
        self.folder = Path(context.options["folder"])

    def predict(self, inputs):
        texts = [text.decode() for text in inputs["content"]]
        is_probe = texts == ["0"]  # whoever opens the embedder asks what its vectors are like
        if not is_probe:
            with open(self.folder / "embedded", "a") as file:
                file.write("".join(f"{text}\\n" for text in texts))
        while not is_probe and self.is_held():
            time.sleep(0.01)
        vectors = np.ones((len(texts), DIMENSION), np.float32)
        vectors[:, :2] = [(len(text), sum(text.encode())) for text in texts]
        return {"vector": vectors}

    def is_held(self):
        try:
            after = (self.folder / "hold").read_text()
        except FileNotFoundError:
            return False
        return not after or (self.folder / "embedded").read_text().count("\\n") >= int(after)
"""


class Encoder:
    """What the model of the other server does, and did.

    Attributes:
        folder: Where it writes that down.
        server: Where that is.
        url: Its address.
    """

    def __init__(self, folder: Path, server: RunningServer) -> None:
        self.folder, self.server = folder, server
        self.url = f"http://127.0.0.1:{server.http_port}"
        self._file = folder / "embedded"

    def embedded(self) -> Counter[str]:
        return Counter(self._file.read_text().splitlines()) if self._file.exists() else Counter()

    def hold(self, more: int | None = None) -> None:
        """Answer nothing from now on, or once so many more are embedded, until it may ``go`` on."""
        after = "" if more is None else str(sum(self.embedded().values()) + more)
        (self.folder / "hold").write_text(after)

    def go(self) -> None:
        (self.folder / "hold").unlink()


@contextmanager
def encoding(folder: Path, dimension: int = 3, *options: str) -> Iterator[Encoder]:
    """The other server."""
    (folder / "models/encoder/1").mkdir(parents=True, exist_ok=True)
    (folder / "models/encoder/1/model.py").write_text(MODEL.replace("DIMENSION", str(dimension)))
    (folder / "models/encoder/headrace.toml").write_text(
        f'[runtime.options]\nfolder = "{folder}"\n'
        f"[batching]\ninstances = {2 * THREADS}\nmax_batch_rows = {BATCH}\n"
    )
    with RunningServer(folder / "models", "--allow-code", *options) as server:
        yield Encoder(folder, server)


@contextmanager
def filler(folder: Path, *options: str, stderr: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that fills."""
    command = [*_HEADRACE, "fill", "--threads", str(THREADS), "--batch", str(BATCH), *options]
    process = subprocess.Popen([*command, "--archive", str(folder / "archive.toml")], stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """A process that answers lookups; gives its port of REST."""
    command = [*_HEADRACE, "serve", "--json", "--http-port", "0", "--grpc-port", "0"]
    with subprocess.Popen(
        [*command, "--archive", str(folder / "archive.toml")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(json.loads(process.stdout.readline())["http"]["port"])
        finally:
            process.kill()


def all_found(archive: Archive, keys: Sequence[str]) -> bool:
    vectors, found = archive.lookup("texts", keys)
    if not found.all():
        return False
    np.testing.assert_array_equal(vectors[:, 0], [len(key) for key in keys])
    return True


def check_concurrent_misses(folder: Path, encoder: Encoder, key: str) -> None:
    """Ask two servers for one key, a thousand times in all, until it has been filled; then again."""
    with serving(folder) as one, serving(folder) as other, filler(folder):
        asked = threading.Barrier(20)

        def ask(number: int) -> None:
            if number < 20:
                asked.wait(120)
            lookup((one, other)[number % 2], key)

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(ask, range(1000)))
        for server in (one, other):
            until(lambda server=server: lookup(server, key) == [True])
    assert encoder.embedded()[key] == 1


def lookup(port: int, key: str) -> list[bool]:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/archive/texts:lookup",
        json.dumps({"keys": [key]}).encode(),
        method="POST",
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return list(json.loads(answer.read())["found"])
