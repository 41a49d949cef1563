"""Search tries each configuration once, in one pass, and names the best that may serve."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema
from headrace.training.options import settings_of
from headrace.training.running.loop import Interruptions, LoopResult, run_loop
from headrace.training.search import Gates, Search, configurations, read_search, report, table, why_out

FEATURES = Features.of(
    Schema(
        fields=(
            Field(name="label", role="label"),
            Field(name="site", role="categorical", buckets=20, keys="bucket"),
            Field(name="ad", role="categorical", buckets=20, keys="bucket"),
        )
    )
)


def block(rows: int, first_row: int = 0) -> Block:
    source = np.random.default_rng(first_row)
    site, ad = source.integers(1, 20, rows), source.integers(1, 20, rows)
    truth = 1 / (1 + np.exp(-(site - 10) / 4)).astype(np.float32)
    starts = FEATURES.table_starts
    columns = {"site": site, "ad": ad}
    indices = [columns[field.name] + starts[n] for n, field in enumerate(FEATURES.categorical)]
    return Block(
        indices=np.ascontiguousarray(np.stack(indices, axis=1), dtype=np.uint32),
        dense=np.zeros((rows, 0), np.float32),
        labels=(source.random(rows) < truth).astype(np.float32),
        truth=truth.astype(np.float32),
        first_row=first_row,
    )


def test_a_grid_is_every_combination_and_tables_come_on_top() -> None:
    wanted = read_search(
        {
            "base": {"factors": 2},
            "grid": {"kind": ["lr", "fm"], "linear.learning_rate": [0.1, 0.2]},
            "configurations": [{"kind": "ffm"}, {"kind": "fm", "linear.learning_rate": 0.1}],
        },
        "search",
    )
    found = configurations(wanted, {"seed": 5})
    assert [one.name for one in found] == [
        "kind=lr linear.learning_rate=0.1",
        "kind=lr linear.learning_rate=0.2",
        "kind=fm linear.learning_rate=0.1",
        "kind=fm linear.learning_rate=0.2",
        "kind=ffm",
    ]
    assert all((one.settings.factors, one.settings.seed) == (2, 5) for one in found)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "expected 1 to 256 configurations, got 0"),
        ({"grid": {"seed": list(range(300))}}, "expected 1 to 256 configurations, got 300"),
        (
            {"grid": {f"a{number}": list(range(10)) for number in range(10)}},
            "expected 1 to 256 configurations, got 10000000000",
        ),
        ({"grid": {"kind": ["tree"]}}, "search: kind=tree: .*kind"),
        ({"grids": {}}, r"grids: unknown setting; did you mean grid\?"),
        ({"gates": {"max_mb": 1.0}}, "gates.max_mb: unknown setting; did you mean max_size_mb"),
        ({"configurations": [{"kind": "gbdt"}]}, "kind: expected one of 'lr', .*, got 'gbdt'"),
    ],
)
def test_a_search_that_cannot_be_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configurations(read_search(values, "search"), {})


def test_the_best_of_one_pass_comes_first_and_its_settings_can_be_used() -> None:
    wanted = read_search(
        {"base": {"kind": "lr"}, "grid": {"linear.learning_rate": [0.000001, 0.1]}}, "search"
    )
    search = Search(configurations(wanted, {}), FEATURES, wanted.gates)
    for number in range(6):
        search.take(block(1500, number * 1500))
    results = search.results()
    assert [one.configuration.settings.linear.learning_rate for one in results] == [0.1, 0.000001]
    assert all(one.score.rows == 9000 for one in results)
    assert results[0].score.logloss < results[1].score.logloss
    text = report(results, 9000)
    assert settings_of(tomllib.loads(text), "config") == results[0].configuration.settings
    assert "best" in text
    assert "the best possible logloss is" in text


def test_a_configuration_that_breaks_a_gate_is_out_however_good_it_is() -> None:
    wanted = read_search(
        {
            "grid": {"kind": ["lr", "fm"], "factors": [16]},
            "gates": {"max_size_mb": 0.001},
        },
        "search",
    )
    search = Search(configurations(wanted, {}), FEATURES, wanted.gates)
    search.take(block(2000))
    results = search.results()
    assert [one.configuration.settings.kind for one in results] == ["lr", "fm"]
    assert not results[0].out
    assert results[1].out.startswith("out: ")
    assert "> 0.001" in table(results, 2000)


def test_a_configuration_that_diverges_is_out() -> None:
    wanted = read_search(
        {
            "base": {"kind": "fm", "embeddings": {"kind": "sgd"}},
            "grid": {"embeddings.learning_rate": [0.1, 1e6]},
        },
        "search",
    )
    search = Search(configurations(wanted, {}), FEATURES, wanted.gates, 8)
    search.take(block(2000))
    assert [one.out for one in search.results()] == ["", "out: diverged"]


@pytest.mark.parametrize(
    "settings",
    [
        {"grid": {"kind": ["lr"]}, "gates": {"max_latency_ms": 0.0}},
        {"base": {"kind": "fm", "embeddings": {"kind": "sgd"}}, "grid": {"embeddings.learning_rate": [1e6]}},
    ],
    ids=["gates", "diverged"],
)
def test_a_search_without_a_survivor_says_so_and_gives_no_settings(settings: dict[str, object]) -> None:
    wanted = read_search(settings, "search")
    search = Search(configurations(wanted, {}), FEATURES, wanted.gates)
    search.take(block(2000))
    text = report(search.results(), 2000)
    assert "every configuration is excluded, `out` says why" in text
    assert "passes the gates" not in text
    assert tomllib.loads(text) == {}


def test_gates_are_limits_that_may_be_reached() -> None:
    gates = Gates(max_size_mb=10.0, max_latency_ms=2.0)
    assert why_out(gates, 10.0, 2.0) == ""
    assert why_out(gates, 10.5, 1.0) == "out: 10.5 MB > 10"
    assert why_out(gates, 1.0, 2.5) == "out: 2.50 ms > 2"
    assert why_out(Gates(), 1e9, 1e9) == ""


def test_each_configuration_learns_in_batches_of_its_own() -> None:
    wanted = read_search({"grid": {"kind": ["lr"], "batch_rows": [100, 700]}}, "search")
    search = Search(configurations(wanted, {}), FEATURES, Gates())
    search.take(block(700))
    first, second = search.results()
    assert first.score.rows == second.score.rows == 700
    assert ModelSettings(kind="lr").online
    assert first.score.logloss == pytest.approx(second.score.logloss)


class Blocks:
    """Three blocks of 500 rows; the last one may be without what models learn from."""

    idle_seconds = 0.0
    stream_bytes = 0

    def __init__(self, wrong: bool = False) -> None:
        self._wrong = wrong

    def wait(self, seconds: float) -> bool:
        raise AssertionError("nothing is due at a time")

    def __iter__(self) -> Iterator[Block]:
        yield block(500)
        yield block(500, 500)
        last = block(500, 1000)
        yield replace(last, indices=None) if self._wrong else last  # type: ignore[arg-type]


def searched(blocks: Blocks, most_rows: int | None = None) -> tuple[Search, LoopResult]:
    wanted = read_search({"grid": {"kind": ["lr"], "batch_rows": [100, 700]}}, "search")
    search = Search(configurations(wanted, {}), FEATURES, Gates())
    with Interruptions() as interruptions:
        return search, run_loop(blocks, search, most_rows, interruptions)


def test_a_search_goes_through_the_loop_of_a_run() -> None:
    search, ended = searched(Blocks(), 1200)
    assert ended == LoopResult("rows")
    assert [one.score.rows for one in search.results()] == [1200, 1200]


def test_a_configuration_that_fails_in_the_loop_is_named() -> None:
    search, ended = searched(Blocks(wrong=True))
    assert (search.rows, ended.stopped) == (1000, "error")
    assert ended.error is not None
    assert ended.error.startswith("search: kind=lr batch_rows=100: ")
    assert {one.out for one in search.results()} == {"", "out: failed"}
