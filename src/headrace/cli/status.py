"""``headrace status``: show a running server's activity once."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from headrace.cli import common
from headrace.cli.live_view import ServerStatus, as_json, as_text, watched
from headrace.cli.metrics_scrape import Interval, MetricsClient, Scrape, add_source, source

_EXAMPLES = """examples:
  headrace status http://127.0.0.1:8501
  headrace status https://models.internal:8501 --token-file token --json

It requests the metrics twice, --interval-seconds apart: rates and latencies cover the time in between.
* marks the default version, which answers requests that name no version. docs/objectives.md explains what
breaks an objective. The full reason why a version does not load is shown at the administration port, or with
a key that permits admin; elsewhere, the messages of models and files are left out.
"""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="status",
            help="show the state of a running server: models, rates, latencies, broken objectives",
            description="Ask a running server for its metrics, and show its models with their versions, "
            "rates and latencies, and which of them break their latency objectives, and why.",
            examples=_EXAMPLES,
            failure="the server does not answer",
            run=run,
        ),
    )
    add_source(parser)


def run(options: argparse.Namespace) -> int:
    """Scrape twice, and print the state."""
    seen = look(source(options), options.interval_seconds)
    if options.json:
        common.print_json(as_json(seen))
    else:
        print(as_text(seen))
    return common.DONE


def look(asked: MetricsClient, seconds: float, before: Scrape | None = None) -> ServerStatus:
    """Scrape a server twice, and return its state.

    Args:
        asked: The server.
        seconds: Time between the scrapes in seconds.
        before: The first scrape, if it was already made.

    Raises:
        ConfigError: The server refuses access, or is not a headrace server.
        Unavailable: The server does not answer.
    """
    before = before or asked.scrape()
    time.sleep(seconds)
    seen = watched(asked.name, Interval(before, asked.scrape()))
    has_failed = any("failed" in model.versions.values() or not model.versions for model in seen.models)
    return replace(seen, failures=asked.failures()) if has_failed else seen
