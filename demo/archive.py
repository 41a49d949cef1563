"""The archive's demonstration: `make demo-archive`, or `python -m demo.archive`.

Pages of film titles are asked for while nothing is there: every answer comes at once, out of vocabulary. A
filler embeds what was missed; the same pages hit. Then what is stored is used otherwise: neighbours of a
film, films that are there twice, a picture of the space, and a click model that has never seen a film, but
knows its title. With ENGINES=1 the vectors are in Cassandra, and
what waits is in Kafka; both are fetched and started. Exits 1 if something did not come about.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from demo import data
from demo.unseen import Unseen
from headrace.base.tensors import Array
from headrace.base.terminal import table

FOLDER = Path(".data")
PICTURE = FOLDER / "archive-titles.png"
UNSEEN_PICTURE = FOLDER / "archive-unseen.png"
FILM = "Toy Story"
PAGE_FILMS = 100
PATIENCE_SECONDS = 120.0
BEGAN = time.perf_counter()
HEADRACE = str(Path(sys.executable).with_name("headrace"))

EMBEDDED = "[cache]\nabsent_seconds = 0.2\n"
ENGINES = """
[store]
kind = "cassandra"
contact_points = ["{cassandra}"]

[queue]
kind = "kafka"
servers = ["{kafka}"]
partitions = 4
"""
SPACES = """
[spaces.titles]
embedder = "minilm"
dtype = "float16"
"""


def say(what: str) -> None:
    """Report progress."""
    print(f"[{time.perf_counter() - BEGAN:5.1f} s] {what}", flush=True)


def titles() -> list[str]:
    """The films' titles, each once."""
    say(f"fetching MovieLens-100k (the package {data.PACKAGE})")
    films = data.load(data.fetch(FOLDER / "ratings")).films
    return list(dict.fromkeys(film.title for film in films.values() if film.title))


@contextmanager
def settings(folder: Path, *, engines: bool) -> Iterator[Path]:
    """An ``archive.toml``, and the servers that it names."""
    with ExitStack() as held:
        engine = EMBEDDED
        if engines:
            from tools.services.cassandra_server import Cassandra  # noqa: PLC0415 - only where they are asked for
            from tools.services.catalogue import running  # noqa: PLC0415
            from tools.services.kafka_server import Kafka  # noqa: PLC0415

            say("starting Apache Cassandra and Apache Kafka")
            cassandra = held.enter_context(running(Cassandra))
            kafka = held.enter_context(running(Kafka))
            engine += ENGINES.format(cassandra=cassandra.address, kafka=kafka.address)
        file = folder / "archive.toml"
        file.write_text(engine + SPACES)
        yield file


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A headrace command that goes on until it is told to end."""
    started = subprocess.Popen([HEADRACE, *words], stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            started.kill()
            raise SystemExit(f"headrace {words[0]} {words[1]} did not end after SIGTERM") from None


@contextmanager
def serving(file: Path) -> Iterator[int]:
    """``headrace archive serve``; gives the port of REST once it is open."""
    options = ("--http-port", "0", "--grpc-port", "0", "--drain-lead-seconds", "0")
    with process("archive", "serve", "--archive", str(file), *options) as server:
        for line in server.stdout or ():
            if found := re.search(r"REST\s+(?:http://)?\S+:(\d+)", line):
                yield int(found[1])
                return
        raise SystemExit("the server ended before it had opened its ports")


class Pages:
    """Pages of films, asked for over REST one after the other."""

    def __init__(self, port: int, films: Sequence[str]) -> None:
        """Cut films into pages."""
        self._url = f"http://127.0.0.1:{port}/v1/archive/titles:lookup"
        self._pages = [films[start : start + PAGE_FILMS] for start in range(0, len(films), PAGE_FILMS)]
        self.lines = [("", "pages", "titles", "found", "p50 ms", "slowest ms")]

    def ask(self, when: str) -> float:
        """Ask for all pages once, and note how that went; gives the share of titles that were found."""
        found, took = 0, []
        for page in self._pages:
            started = time.perf_counter()
            answer = self._answer(page)
            took.append(1e3 * (time.perf_counter() - started))
            found += sum(answer["found"])
        count = sum(map(len, self._pages))
        took.sort()
        p50, slowest = took[len(took) // 2], took[-1]
        line = (when, str(len(took)), str(count), f"{found / count:.0%}", f"{p50:.1f}", f"{slowest:.1f}")
        self.lines.append(line)
        return found / count

    def vectors(self, titles: list[str]) -> Array:
        """The vectors of titles, float32 ``[titles, size]``; zeros where there is none."""
        parts: list[list[list[float]]] = []
        for start in range(0, len(titles), PAGE_FILMS):
            answer = self._answer(titles[start : start + PAGE_FILMS])
            found = zip(answer["vectors"], answer["found"], strict=True)
            parts.append([vector if there else [0.0] * len(vector) for vector, there in found])
        return np.concatenate(parts, dtype=np.float32)

    def _answer(self, keys: Sequence[str]) -> dict[str, Any]:
        body = json.dumps({"keys": keys}).encode()
        with urllib.request.urlopen(urllib.request.Request(self._url, body)) as reply:
            answer: dict[str, Any] = json.load(reply)
        return answer


def fill(file: Path, pages: Pages) -> None:
    """Run a filler until the pages hit."""
    with process("archive", "fill", "--archive", str(file)):
        started, share = time.perf_counter(), 0.0
        while share < 1.0:
            if time.perf_counter() - started > PATIENCE_SECONDS:
                raise SystemExit(f"only {share:.0%} of the titles were embedded in {PATIENCE_SECONDS:.0f} s")
            time.sleep(1.0)
            share = pages.ask(f"after {time.perf_counter() - started:.0f} s of filling")
            say(f"{share:.0%} of the titles have a vector")


def show(file: Path, *words: str) -> None:
    """Run a command, and show what it prints."""
    print(f"\n$ headrace archive {' '.join(words)}", flush=True)
    subprocess.run([HEADRACE, "archive", *words, "--archive", str(file)], check=True)


def main() -> None:
    """Show it all."""
    parser = argparse.ArgumentParser(prog="python -m demo.archive", description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", action="store_true", help="on Cassandra and Kafka")
    engines = parser.parse_args().engines or os.environ.get("ENGINES") == "1"
    films = titles()
    with tempfile.TemporaryDirectory() as folder, settings(Path(folder), engines=engines) as file:
        say("starting headrace archive serve")
        with serving(file) as port:
            pages = Pages(port, films)
            say(f"asking for {len(films):,} titles, {PAGE_FILMS} a page, of which none is embedded")
            pages.ask("nothing is embedded")
            say("starting headrace archive fill")
            fill(file, pages)
            pages.ask("all are embedded")
            print()
            print(table(pages.lines, right=range(1, 6)))
            say("headrace train --model mdn begins to learn from ratings, with titles and without")
            with closing(Unseen(FOLDER / "ratings", pages.vectors)) as unseen:
                show(file, "status")
                show(file, "neighbours", "titles", FILM, "--count", "5")
                show(file, "duplicates", "titles", "--threshold", "0.9", "--groups", "5")
                show(file, "plot", "titles", "--out", str(PICTURE.resolve()))
                print()
                unseen.show(UNSEEN_PICTURE)
    say(f"done; the pictures are {PICTURE} and {UNSEEN_PICTURE}")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
