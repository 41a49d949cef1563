"""A model that answers in parts and waits before each until the test lets it go on, for a real server."""

from __future__ import annotations

from pathlib import Path

from tests.running_server import RunningServer

_SOURCE = """
import {library}
from pathlib import Path

class Model:
    inputs = [("text", "BYTES", [1])]
    outputs = [("word", "BYTES", [1])]

    def load(self, path, context):
        self.gates = path.parent / "gates"

    {kind} predict(self, inputs):
        name = "nobody"
        try:
            name, *words = inputs["text"][0, 0].decode().split()
            for index, word in enumerate(words):
                while not (self.gates / f"{{name}}-{{index}}").exists():
                    {pause}
                yield {{"word": [[word]]}}
        finally:
            (self.gates / f"{{name}}-closed").touch()
"""


class GatedModel:
    """The model ``words``: it splits a text; the first word names the gates, of which each opens one part."""

    def __init__(self, models: Path, kind: str = "async def") -> None:
        """Write it.

        Args:
            models: The directory of models.
            kind: ``def`` or ``async def``.
        """
        is_async = kind == "async def"
        pause = "await asyncio.sleep(0.01)" if is_async else "time.sleep(0.01)"
        source = _SOURCE.format(kind=kind, pause=pause, library="asyncio" if is_async else "time")
        (models / "words/1").mkdir(parents=True)
        (models / "words/1/model.py").write_text(source)
        (models / "words/headrace.toml").write_text("[warm_up]\nenabled = false\n")
        self._gates = models / "words/gates"
        self._gates.mkdir()

    def open(self, name: str, *numbers: int) -> None:
        """Let these parts of a stream be computed."""
        for number in numbers:
            (self._gates / f"{name}-{number}").touch()

    def wait_until_closed(self, server: RunningServer, name: str) -> None:
        """Wait until the generator of a stream has been closed."""
        server.wait_for((self._gates / f"{name}-closed").exists, f"the generator of {name} to be closed")
