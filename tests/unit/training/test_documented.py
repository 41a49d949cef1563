"""The guide to training lists every option and every metric."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from headrace.cli import train
from headrace.training.reporting.run_metrics import METRICS

GUIDE = (Path(__file__).resolve().parents[3] / "docs/training.md").read_text("utf-8")


def test_the_guide_lists_every_option() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    verbs = parser.add_subparsers()
    train.add_to(verbs)
    known = set(re.findall(r"(--[a-z-]+)", verbs.choices["train"].format_usage())) - {"--help"}
    listed = set(re.findall(r"^\| `(--[a-z-]+)", GUIDE, re.MULTILINE))
    assert listed == known


def test_the_guide_lists_every_metric_with_its_meaning() -> None:
    for metric in METRICS:
        kind, suffix = ("counter", "_total") if metric.counter else ("gauge", "")
        assert f"| `headrace_training_{metric.name}{suffix}` | {kind} | {metric.help} |" in GUIDE
