"""``headrace archive VERB``: manage vectors by key. Most verbs are a module each."""

from __future__ import annotations

import argparse
from importlib import import_module

from headrace.cli import common

_MODULES = (
    "serve",
    "check",
    "fill_and_backfill",
    "status",
    "lookup",
    "put",
    "load",
    "feed",
    "join",
    "forget_and_invalidate",
    "versions",
    "dead_letters",
    "neighbours",
    "duplicates",
    "plot",
)
"""The modules of the verbs, in the order of the help; ``versions`` also has ``default`` and ``drop``."""

_EXAMPLES = """examples:
  headrace archive serve                   answer lookups over REST and gRPC
  headrace archive check                   check archive.toml, the store, the queue and the embedders
  headrace archive lookup titles "The Matrix"
                                           look up a key; it is embedded if it is new
  headrace archive fill                    embed missed keys
  headrace archive status                  hits, new keys, delays, queued keys
  headrace archive forget titles "The Matrix"
  headrace archive duplicates titles       find near-duplicate keys

All verbs read ./archive.toml, or the file that --archive names."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs to the command line."""
    parser = words.add_parser(
        "archive",
        help="keep embeddings by key: look up, fill, forget",
        description="Embeddings by key, computed once by background workers, looked up in microseconds.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = common.add_verbs(parser)
    for name in _MODULES:
        import_module(f"{__name__}.{name}").add_to(verbs)
