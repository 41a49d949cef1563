"""``python -m tests.fuzz [--seconds 600] [TARGET ...]``: fuzz each target by itself, and say what was found.

A finding is an input that ends in anything but an answer or a typed error, takes longer than ten seconds, or
two gigabytes. It is written below ``.data/fuzz/TARGET``, with the line that runs it again. What was learnt
about inputs stays in ``.data/fuzz/TARGET/corpus``, where the next run goes on.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from headrace.base.terminal import table
from tests.fuzz.targets import LAST, TARGETS

PLACE = Path(".data/fuzz")
_DONE = re.compile(r"#([0-9]+)\s+DONE\s+cov: ([0-9]+)")
_AT = re.compile(r"#([0-9]+)\s+\w+\s+cov: ([0-9]+)")
_WRITTEN = re.compile(r"Test unit written to (\S+)")


class Fuzzed(NamedTuple):
    """How one target fared: inputs tried, edges covered, files of findings."""

    name: str
    inputs: int
    edges: int
    findings: tuple[str, ...]


def fuzz(name: str, seconds: int) -> Fuzzed:
    """Fuzz one target for some seconds, and go on after what is found."""
    place = PLACE / name
    place.mkdir(parents=True, exist_ok=True)
    last = place / LAST
    last.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "tests.fuzz.one", name, str(place / "corpus")),
        *(f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=65536"),
        *(f"-artifact_prefix={place}/", "-print_final_stats=1"),
    ]
    environment = {**os.environ, "HEADRACE_LOG_LEVEL": "error"}
    ended = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, env=environment)
    said = ended.stderr
    (place / "log").write_text(said)
    at = [*_AT.findall(said), *_DONE.findall(said)]
    inputs, edges = (int(one) for one in at[-1]) if at else (0, 0)
    findings = tuple(_WRITTEN.findall(said))
    if ended.returncode and not findings:
        findings = (str(last) if last.exists() else f"it ended with {ended.returncode}: see {place}/log",)
    return Fuzzed(name, inputs, edges, findings)


def main() -> int:
    """Fuzz all targets, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition(":")[2])
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together (default 600)")
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="which; all if left out")
    asked = parser.parse_args()
    names = asked.targets or list(TARGETS)
    rows, found = [("target", "inputs", "edges", "findings")], False
    for name in names:
        each = max(1, asked.seconds // len(names))
        print(f"{name}: {each} s", file=sys.stderr, flush=True)
        one = fuzz(name, each)
        rows.append((one.name, f"{one.inputs:,}", f"{one.edges:,}", str(len(one.findings))))
        for file in one.findings:
            found = True
            print(f"found: python -m tests.fuzz.one {name} {file}", file=sys.stderr)
    print(table(rows))
    return int(found)


sys.exit(main())
