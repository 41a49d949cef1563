"""A model that holds a batch until there is a file: what waits behind it waits as long as a test needs."""

from __future__ import annotations

from pathlib import Path

HELD = """
import os
import time


class Model:
    inputs = [("seconds", "FP32", [])]
    outputs = [("rows", "INT64", [])]

    def predict(self, inputs):
        seconds, until = inputs["seconds"], time.monotonic() + 120
        while (seconds > 0).any() and not os.path.exists({gate!r}) and time.monotonic() < until:
            time.sleep(0.01)
        return {{"rows": [len(seconds)] * len(seconds)}}
"""


def held_until(gate: Path) -> str:
    """The text of a ``model.py`` as ``SLOW`` is one, but that a row above 0 holds its batch until then.

    Args:
        gate: The file.
    """
    return HELD.format(gate=str(gate))
