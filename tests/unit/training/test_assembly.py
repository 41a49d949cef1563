"""What must be the same for a checkpoint to fit, and what a plot is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.training.model_toml import settings_of
from headrace.training.options import TrainOptions
from headrace.training.run_session import identity_of, make_plot
from tests.click_blocks import SINGLE


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"linear": {"kind": "adagrad"}}, False),  # checkpoints go on that were saved before there was one
        ({}, True),
        ({"kind": "fm"}, False),
        ({"linear": {"kind": "forgetting"}}, True),
    ],
)
def test_a_half_life_counts_where_something_halves(said: dict[str, object], expected: bool) -> None:
    model = identity_of(TrainOptions(), settings_of(said, "x"), SINGLE)["model"]
    assert isinstance(model, dict)
    assert ("half_life_rows" in model) is expected
    assert "threads" not in model


@pytest.mark.parametrize(
    ("keras", "title"), [(None, "headrace train · lr"), ("m.py", "headrace train · keras")]
)
def test_a_plot_names_the_model_that_was_trained(keras: str | None, title: str) -> None:
    plot = make_plot(TrainOptions(plot=Path("run.png"), keras=keras), settings_of({"kind": "lr"}, "x"))
    assert plot is not None
    assert plot.title == title
