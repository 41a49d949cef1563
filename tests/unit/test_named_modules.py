"""Modules that pages, docstrings, comments and messages name exist: what has moved has its new name there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = [
    path for home in ("src", "tests", "benchmarks", "demo", "tools") for path in (ROOT / home).rglob("*.py")
]
PATHS = {path.relative_to(ROOT).as_posix() for path in CODE}
PATHS |= {path.removeprefix(prefix) for path in PATHS for prefix in ("src/", "src/headrace/")}
FILE_NAMES = {path.name for path in CODE} | {
    "FILE.py",
    "words.py",
    "app.py",
    "model.py",
    "_pb2.py",
}  # five that are a user's, or none
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "pyproject.toml"]
TEXTS += [path for path in CODE if not path.is_relative_to(ROOT / "tests")]  # those make files up
OTHER_FILES = (".toml", ".pin", ".md", ".png")
KEYS = {"headrace.encoder"}  # in an ONNX file's metadata
SPANS = (ROOT / "src/headrace/telemetry/tracing/spans.py").read_text("utf-8")
ATTRIBUTES = set(re.findall(r'"(headrace(?:\.[a-z_]+)+)"', SPANS))


def names_in_protos() -> set[str]:
    """The packages of our protos, with their messages and services."""
    found = set()
    for proto in (ROOT / "proto").glob("*.proto"):
        text = proto.read_text("utf-8")
        for package in re.findall(r"^package ([\w.]+);", text, re.MULTILINE):
            found.add(package)
            found |= {
                f"{package}.{name}" for name in re.findall(r"^(?:message|service) (\w+)", text, re.MULTILINE)
            }
    return found


NO_MODULES = KEYS | ATTRIBUTES | names_in_protos()


def module_exists(dotted: str) -> bool:
    """Whether there is such a module or package, or such a name in one."""
    place = ROOT / "src" if dotted.startswith("headrace.") else ROOT
    names = dotted.split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    if names and (place / f"{names[0]}.py").exists():
        place = place / f"{names.pop(0)}.py"
    else:
        place /= "__init__.py"
    return not names or (
        place.exists() and re.search(rf"\b{names[0]}\b", place.read_text("utf-8")) is not None
    )


def lost(text: str) -> list[str]:
    paths = re.findall(r"(?<![\w/])[\w./-]+\.py\b", text)
    dotted = re.findall(r"(?<![\w./-])(?:headrace|tests|benchmarks|demo)(?:\.[A-Za-z_]\w*)+", text)
    for module, names in re.findall(r"^ *from (headrace[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        dotted += [f"{module}.{name}" for name in re.sub(r" as \w+", "", names).split(", ")]
    return [
        *[path for path in paths if path.removeprefix("../") not in (PATHS if "/" in path else FILE_NAMES)],
        *[
            name
            for name in dotted
            if not name.endswith(OTHER_FILES) and name not in NO_MODULES and not module_exists(name)
        ],
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`batching/planning.py`, planning.py", ["batching/planning.py", "planning.py"]),
        ("`src/headrace/batching/plan.py`, batching/plan.py and plan.py", []),
        ("headrace.ctr.zoo, headrace.nothing.at_all", ["headrace.ctr.zoo", "headrace.nothing.at_all"]),
        ("headrace.ctr, headrace.base.clock.Clock, headrace.config.Limits, headrace.toml", []),
        ("headrace.base.clock.Watch", ["headrace.base.clock.Watch"]),
        ("headrace.archive.v1.Archive, headrace.archive.v1.Nothing", ["headrace.archive.v1.Nothing"]),
        ("from headrace.base.clock import Clock, Watch as Sand", ["headrace.base.clock.Watch"]),
        ("from headrace import Engine, nothing", ["headrace.nothing"]),
    ],
)
def test_this_finds_what_is_lost(text: str, said: list[str]) -> None:
    assert lost(text) == said


def test_every_module_that_is_named_exists() -> None:
    found = {str(path.relative_to(ROOT)): lost(path.read_text("utf-8")) for path in TEXTS}
    assert {path: names for path, names in found.items() if names} == {}
