"""`python -m benchmarks [NAME …]`: run benchmarks and print their tables and verdicts.

`python -m benchmarks soak` is no benchmark: it has options of its own (`soak --help`).
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.models import CACHE
from benchmarks.processes import require
from benchmarks.rounds import Effort, print_machine
from benchmarks.stalls import told

NAMES = (
    "throughput",
    "grpc_single",
    "rest_single",
    "lone",
    "swap",
    "reloads",
    "arrivals",
    "batching",
    "load_signal",
    "overload",
    "in_process",
    "runtimes",
    "start",
    "transports",
    "model_files",
    "stream",
    "candidates",
    "fwumious",
    "realdata",
    "freshness",
    "deepfm",
    "training",
    "door",
    "texts",
    "seam",
    "isolation",
    "instance_processes",
    "similarity",
    "stores",
    "embedders",
    "fashion",
    "archive",
    "archive_wire",
    "archive_outage",
    "prediction_cache",
    "archive_filling",
    "archive_reason",
    "archive_sizes",
    "archive_feed",
    "balancer",
    "handover",
    "cold_start",
    "load_checks",
    "workers",
    "sharing",
    "tls",
    "fairness",
    "tokens",
    "tracing",
    "many_models",
    "connections",
)
ALONE = {
    "fairness": ("taskset",),
    "tokens": ("taskset",),
    "door": ("taskset",),
    "load_signal": ("taskset", "h2load"),
    "arrivals": ("taskset", "h2load"),
    "swap": ("taskset", "h2load"),
    "texts": ("taskset", "h2load", "wrk"),
    "seam": ("taskset",),
    "tracing": ("taskset",),
    "reloads": (),
    "in_process": (),
    "runtimes": (),
    "isolation": (),
    "instance_processes": (),
    "similarity": (),
    "prediction_cache": (),
    "archive": (),
    "stores": (),
    "embedders": (),
    "fashion": ("taskset",),
    "archive_wire": ("taskset", "wrk"),
    "archive_outage": (),
    "archive_filling": ("taskset",),
    "archive_reason": (),
    "archive_sizes": (),
    "archive_feed": (),
    "balancer": (),
    "handover": (),
    "cold_start": (),
    "load_checks": (),
    "workers": ("taskset", "wrk", "h2load", "ss"),
    "sharing": (),
    "tls": ("taskset", "h2load"),
    "many_models": ("taskset", "wrk"),
    "connections": ("taskset", "wrk", "h2load"),
}
"""What those need that compare headrace with no other server; all others need more, and the peers."""


def main() -> None:
    """Run what is named, or everything."""
    if sys.argv[1:2] == ["soak"]:
        raise SystemExit(import_module("benchmarks.soak.__main__").main(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all if none is named"
    )
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="turns of each side")
    parser.add_argument("--seconds", type=float, default=Effort.seconds, help="length of a turn")
    parser.add_argument(
        "--against",
        type=Path,
        action="append",
        default=[],
        metavar="DIR/src",
        help="the sources of another tree, for seam; may be repeated",
    )
    parser.add_argument(
        "--plot", action="store_true", help="draw a picture, for fashion, overload and reloads"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="the four IDX files of Fashion-MNIST, for fashion"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    names = options.names or NAMES
    if all(name in ALONE for name in names):
        require(*(program for name in names for program in ALONE[name]), peers=False)
    else:
        require("taskset", "h2load", "wrk")
    print_machine()
    CACHE.mkdir(exist_ok=True)  # most keep their models there
    for name in names:
        module = import_module(f"benchmarks.{name}")
        print(f"\n{name}: {(module.__doc__ or '').strip()}", flush=True)
        with told():
            module.run(
                Effort(options.rounds, options.seconds, tuple(options.against), options.plot, options.data)
            )


if __name__ == "__main__":
    main()
