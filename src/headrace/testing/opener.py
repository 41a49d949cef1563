"""How a test opens the thing under test: in this process, and in another one in the same way."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Opener:
    """A function to be called, by its name, so that another process can call it, too.

    Attributes:
        call: Where it is: ``module:function``.
        arguments: What it is called with, by name; JSON's kinds of values.
    """

    call: str
    arguments: Mapping[str, Any]

    def open(self) -> Any:
        """Call it."""
        module, _, name = self.call.partition(":")
        return getattr(importlib.import_module(module), name)(**self.arguments)

    def to_json(self) -> str:
        """As another process is told."""
        return json.dumps({"call": self.call, "arguments": dict(self.arguments)})

    @classmethod
    def from_json(cls, text: str) -> Opener:
        """As ``to_json`` has told."""
        told = json.loads(text)
        return cls(told["call"], told["arguments"])
