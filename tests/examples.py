"""How many examples the longest properties try: a quarter; all of them with ``EXAMPLES=all``."""

from __future__ import annotations

import os

ALL = os.environ.get("EXAMPLES") == "all"


def examples(all_of_them: int) -> int:
    """How many of a property's examples are tried: all where the environment has ``EXAMPLES=all``."""
    return all_of_them if ALL else all_of_them // 4
