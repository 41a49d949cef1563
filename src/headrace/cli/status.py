"""``headrace status``: what a running server does at this moment, once."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from headrace.cli import verbs
from headrace.cli.scraping import Interval, Scrape, Source, add_source, source
from headrace.cli.watched import Watched, as_json, as_text, watched

_EXAMPLES = """examples:
  headrace status http://127.0.0.1:8501
  headrace status https://models.internal:8501 --token-file token --json

It asks for the metrics twice, --interval-seconds apart: rates and latencies are of the time in between.
A * stands behind the version that answers unnamed requests. docs/objectives.md tells what
breaks an objective. Why a version does not load is told at the administration's port, or with a key that
permits admin, in full, and elsewhere without what models and files say.
"""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="status",
            help="show what a running server does: models, rates, latencies, who breaks its objective",
            description="Ask a running server for its metrics, and show its models with their versions, "
            "rates and latencies, and who breaks its latency objective for which reason.",
            examples=_EXAMPLES,
            failure="the server does not answer",
            run=run,
        ),
    )
    add_source(parser)


def run(options: argparse.Namespace) -> int:
    """Ask twice, and print what was said."""
    seen = look(source(options), options.interval_seconds)
    if options.json:
        verbs.print_json(as_json(seen))
    else:
        print(as_text(seen))
    return verbs.DONE


def look(asked: Source, seconds: float, before: Scrape | None = None) -> Watched:
    """Ask twice.

    Args:
        asked: The server.
        seconds: How long to wait in between.
        before: What it said the first time, if it was asked already.

    Raises:
        ConfigError: The server does not let the caller in, or is none.
        Unavailable: Nobody answers.
    """
    before = before or asked.scrape()
    time.sleep(seconds)
    seen = watched(asked.name, Interval(before, asked.scrape()))
    has_failed = any("failed" in model.versions.values() or not model.versions for model in seen.models)
    return replace(seen, failures=asked.failures()) if has_failed else seen
