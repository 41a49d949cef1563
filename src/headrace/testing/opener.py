"""Opens the object under test, in this process or in another one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Opener:
    """A call of a named function, which another process can make too.

    Attributes:
        call: Location of the function: ``module:function``.
        arguments: Keyword arguments, of types that JSON has.
    """

    call: str
    arguments: Mapping[str, Any]

    def open(self) -> Any:
        """Call the function, and return its result."""
        module, _, name = self.call.partition(":")
        return getattr(importlib.import_module(module), name)(**self.arguments)

    def to_json(self) -> str:
        """Encode the opener for another process."""
        return json.dumps({"call": self.call, "arguments": dict(self.arguments)})

    @classmethod
    def from_json(cls, text: str) -> Opener:
        """Decode the result of ``to_json``."""
        told = json.loads(text)
        return cls(told["call"], told["arguments"])
