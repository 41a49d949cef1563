"""A model that holds a batch until a file exists, so that a test controls how long requests queue."""

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
    """Return the ``model.py`` of a model that holds a batch with a row above 0 until the file exists.

    It gives up after 120 s. Inputs and outputs are those of ``SLOW``.

    Args:
        gate: The file.
    """
    return HELD.format(gate=str(gate))
