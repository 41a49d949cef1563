"""``headrace top``: show a running server's activity, refreshed in place."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.errors import Unavailable
from headrace.base.terminal import fitted
from headrace.cli import common
from headrace.cli.metrics_scrape import Interval, MetricsClient, Scrape, add_server_options, metrics_client
from headrace.cli.status import as_json, as_text, look, watched

_EXAMPLES = """examples:
  headrace top http://127.0.0.1:8501
  headrace top https://models.internal:8501 --token-file token --interval-seconds 5
  headrace top http://127.0.0.1:8501 | cat     print one table, and exit

Ctrl-C ends it. * marks the default version, which answers requests that name no version.
"""
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="top",
            help="watch a running server on the terminal",
            description="Show the output of status for a running server, refreshed in place. If the server "
            "stops answering, top keeps asking; if it does not answer at first, top ends. If the output is "
            "not a terminal, one table is printed.",
            examples=_EXAMPLES,
            failure="the server does not answer",
            run=run,
        ),
    )
    add_server_options(parser)


def run(options: argparse.Namespace) -> int:
    """Show the server's activity until interrupted."""
    client = metrics_client(options)
    before = client.scrape()
    if options.json:
        common.print_json(as_json(look(client, options.interval_seconds, before)))
    elif not sys.stdout.isatty():
        print(as_text(look(client, options.interval_seconds, before)))
    else:
        try:
            with _screen():
                _show(f"{client.name}: …")
                _watch(client, before, options.interval_seconds)
        except KeyboardInterrupt:  # the regular way to quit
            pass
    return common.DONE


def _watch(client: MetricsClient, before: Scrape | None, seconds: float) -> None:
    """Refresh the display forever; if the server does not answer, retry."""
    while True:
        time.sleep(seconds)
        try:
            after = client.scrape()
        except Unavailable as error:
            before = None
            _show(f"{error.message}\nretrying every {seconds:g} s; Ctrl-C ends it")
            continue
        if before is None:
            _show(f"{client.name}: the server answers again …")
        else:
            _show(as_text(watched(client.name, Interval(before, after))))
        before = after


@contextmanager
def _screen() -> Iterator[None]:
    """Switch to the terminal's alternate screen without a cursor, and restore it on exit."""
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _show(text: str) -> None:
    """Overwrite the screen. No line may wrap, or the next display would not cover it."""
    columns, lines = shutil.get_terminal_size()
    shown = fitted(text, columns, lines)
    sys.stdout.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\r\n" for line in shown[:-1]))
    sys.stdout.write(f"{shown[-1]}{_CLEAR_LINE}{_CLEAR_REST}")
    sys.stdout.flush()
