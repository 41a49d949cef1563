"""`python -m benchmarks soak`: mixed load under faults, every answer checked, every request accounted for."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from benchmarks.models import CACHE
from benchmarks.rounds import print_machine
from benchmarks.soak.report import is_well, plot, tell, write_report
from benchmarks.soak.running import Progress, soak
from tests.faults.jumping_clock import library


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak.

    Returns:
        1 if anything was wrong, else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, metavar="N", help="how long (30)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="what happens, and when (1)")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="memory, descriptors, threads and p99 over time"
    )
    parser.add_argument("--report", type=Path, metavar="FILE.md", help="the tables as Markdown")
    options = parser.parse_args(arguments)
    for file in filter(None, (options.plot, options.report)):
        file.parent.mkdir(parents=True, exist_ok=True)
    print_machine()
    seconds = options.minutes * 60
    clock = library() is not None
    if not clock:
        print("no clock jumps: libfaketime is not installed (Debian's faketime)")
    course = soak(options.seed, seconds, _progress(seconds), clock=clock)
    tell(course)
    if options.plot:
        plot(course, options.plot)
    if options.report:
        write_report(course, options.report)
    if not is_well(course):
        _keep_logs({**course.logs, "defects": course.defects})
    return 0 if is_well(course) else 1


def _progress(seconds: float) -> Progress:
    """A bar for people, lines for what keeps them."""
    if not sys.stderr.isatty():
        began = time.monotonic()
        return lambda at, said: print(
            f"  {time.monotonic() - began:5.0f} s  {at / seconds:4.0%}  {said}", file=sys.stderr, flush=True
        )
    bar = tqdm(total=seconds, unit="s", bar_format="{percentage:3.0f}% {bar} {postfix}")

    def show(at: float, said: str) -> None:
        bar.n = min(at, seconds)
        bar.set_postfix_str(said)

    return show


def _keep_logs(logs: dict[str, list[str]]) -> None:
    folder = CACHE / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in logs.items():
        file = folder / f"soak-{name}.log"
        file.write_text("\n".join(lines) + "\n", "utf-8")
        print(f"kept: {file}")


if __name__ == "__main__":
    raise SystemExit(main())
