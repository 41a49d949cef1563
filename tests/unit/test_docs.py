"""The documentation says what the code says: links lead somewhere, tables are complete, examples parse."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from headrace.base import errors
from headrace.base.errors import HeadraceError, StreamError
from headrace.base.status_codes import codes
from headrace.cli.main import main
from headrace.config import MODEL_CONFIG_FILE, parse_model_config
from headrace.frontends.access_control import METRICS as ACCESS_METRICS
from headrace.frontends.archive.metrics import FEED_METRICS
from headrace.frontends.archive.metrics import METRICS as ARCHIVE_METRICS
from headrace.frontends.metrics.disk_space import METRICS as DISK_METRICS
from headrace.frontends.metrics.engine_metrics import METRICS
from headrace.frontends.metrics.metric_types import Metric
from headrace.frontends.transport.certificates import METRICS as TLS_METRICS
from headrace.server.call_observers import METRICS as OBSERVER_METRICS
from headrace.workers.metrics import GAUGES
from headrace.workers.metrics import METRICS as WORKER_METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SUFFIXES = {"counter": "_total", "gauge": "", "histogram": ""}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {name}, which does not exist"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: no such heading"


@every_page
def test_python_examples_compile(page: Path) -> None:
    for example in blocks(page, "python"):
        wrapped = "async def example():\n" + "".join(f"    {line}\n" for line in example.splitlines())
        compile(wrapped + "    pass\n", str(page), "exec")


@every_page
def test_settings_in_examples_are_toml(page: Path) -> None:
    for example in blocks(page, "toml"):
        tomllib.loads(example)


def test_each_decision_has_a_number_of_its_own() -> None:
    """Links and people name decisions by their numbers; two written at a time may take the same one."""
    pages = sorted((ROOT / "docs/decisions").glob("*.md"))
    numbers = [page.name[:4] for page in pages]
    assert numbers == [f"{number:04}" for number in range(len(pages))]
    for page, number in zip(pages[1:], numbers[1:], strict=True):
        assert page.read_text("utf-8").startswith(f"# {number}. "), f"{page.name}: another number at its top"


def options_of(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The options in a verb's help, each with what is said about it."""
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    said = capsys.readouterr().out.replace("\n" + " " * 10, " ")
    return dict(re.findall(r"^  (--[a-z-]+)(?= )(.*)$", said, re.MULTILINE))


OPTIONS = {
    "train": "training",
    "serve": "serve",
    "profile": "profile",
    "stream generate": "stream",
    "stream encode": "stream",
}


@pytest.mark.parametrize("verb", OPTIONS)
def test_every_option_is_in_its_table_with_its_default(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / f"docs/{OPTIONS[verb]}.md").read_text("utf-8").replace("`", "")
    options = options_of(verb, capsys, monkeypatch)
    assert len(options) > 5
    for option, help_text in options.items():
        rows = re.findall(rf"^.*{option}\b.*$", guide, re.MULTILINE)
        assert rows, f"{option} is not in the guide"
        for default in re.findall(r"\(default (?!none)([\w.]+)", help_text):  # a guide may leave none out
            told = any(default in row.replace(",", "") for row in rows)
            assert told, f"{option}: its default, {default}, is not in the guide"


VERBS = (
    "serve",
    "train",
    "stream generate",
    "stream encode",
    "stream inspect",
    "versions",
    "rollback",
    "hold",
    "profile",
    "compile",
    "compare",
)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_all_verbs_has_the_same_words_for_the_same_things(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(verb, capsys, monkeypatch)
    for option, said in options.items():
        metavar, _, text = said.strip().partition("  ")
        assert metavar not in {"SECONDS", "ROWS", option.lstrip("-").replace("-", "_").upper()} - {"HOST"}
        assert not re.search(r"\(default: |\d if left out|repeatable", text), f"{verb} {option}: {text}"


def test_the_batching_policy_in_the_guide_is_the_default_one() -> None:
    (example,) = [one for one in blocks(ROOT / "docs/batching.md", "toml") if "[batching]" in one]
    assert parse_model_config(example) == parse_model_config(""), MODEL_CONFIG_FILE


def test_the_batch_sizes_in_the_page_on_accelerators_are_allowed() -> None:
    (example,) = blocks(ROOT / "docs/accelerators.md", "toml")
    assert parse_model_config(example).batching.max_batch_rows == 128


def test_the_readme_starts_a_server_once_and_goes_on_with_it() -> None:
    """A second one would find its port taken."""
    commands = "".join(blocks(ROOT / "README.md", "console"))
    assert re.findall(r"^\$ headrace serve .*", commands, re.MULTILINE) == ["$ headrace serve models"]
    assert commands.index("headrace serve models") < commands.index("headrace train")


def kind_of(metric: Metric) -> str:
    """Its type; of a gauge with how workers' are put together, where there are workers."""
    return f"gauge, {GAUGES[metric.name]}" if metric.name in GAUGES else metric.kind


def test_the_guide_to_metrics_lists_them_all_with_their_meaning() -> None:
    listed = re.findall(
        r"^\| `(headrace_\w+)` \| ([\w, ]+) \| (.*?) \| (.*?) \|$",
        (ROOT / "docs/metrics.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert listed == [
        (metric.name + SUFFIXES[metric.kind], kind_of(metric), ", ".join(metric.labels) or "–", metric.help)
        for metric in (
            *(*METRICS, *WORKER_METRICS, *DISK_METRICS, *TLS_METRICS, *ACCESS_METRICS),
            *(*ARCHIVE_METRICS, *FEED_METRICS, *OBSERVER_METRICS),
        )
    ]


def test_the_guide_to_errors_has_the_codes_of_the_one_table() -> None:
    listed = re.findall(
        r"^\| `(\w+)` \|.*\| (\d+) \| `(\w+)` \|$", (ROOT / "docs/errors.md").read_text("utf-8"), re.MULTILINE
    )
    said = {name: (int(http), grpc) for name, http, grpc in listed}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not StreamError]
    known = {kind.__name__: codes(kind("one")) for kind in kinds if issubclass(kind, HeadraceError)}
    del known["HeadraceError"], known["Refused"]  # bases: nothing raises them as they are
    assert said == {name: (found.http, found.name) for name, found in known.items()}
