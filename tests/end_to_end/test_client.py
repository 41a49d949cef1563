"""``headrace.Client`` with data frames of pandas and polars, against a server process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import skops.io
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import headrace
from headrace import example
from headrace.base.errors import InvalidRequest, Unauthenticated
from headrace.cli.main import main
from tests.running_server import RunningServer

FRAME = pd.DataFrame(
    {
        "age": [31.0, None, 27.0, 52.0, 38.0, None],
        "visits": [3, 14, 1, 5, 9, 2],
        "country": ["de", "fr", None, "de", None, "fr"],
        "note": ["likes jazz", "asks for jazz", "pop", "pop and rock", "rock", "jazz"],
    }
)
LABELS = np.array([0, 1, 0, 1, 1, 0])


def fitted() -> Pipeline:
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["age", "visits"]),
        (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["country"]),
        (CountVectorizer(), "note"),
    )
    frame = FRAME.astype({"country": object}).where(FRAME.notna(), np.nan)
    return make_pipeline(columns, LogisticRegression()).fit(frame, LABELS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = tmp_path_factory.mktemp("models")
    version = models / "likes" / "1"
    version.mkdir(parents=True)
    skops.io.dump(fitted(), version / "model.skops")
    with RunningServer(Path(models)) as running:
        yield running


@pytest.mark.parametrize("convert", [pd.DataFrame, pl.from_pandas])
def test_a_pipeline_answers_mixed_columns_with_missing_values(server: RunningServer, convert: Any) -> None:
    frame = FRAME.astype({"country": object}).where(FRAME.notna(), np.nan)
    with headrace.Client(f"http://127.0.0.1:{server.http_port}") as client:
        answer = client.predict("likes", convert(FRAME.assign(more=1.0)))
        np.testing.assert_allclose(answer["probabilities"], fitted().predict_proba(frame), rtol=1e-12)
        wrong = convert(FRAME.assign(visits=FRAME["note"]))
        with pytest.raises(InvalidRequest) as caught:
            client.predict("likes", wrong)
    assert caught.value.field.startswith("visits")


def test_a_token_is_sent_with_each_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.write(tmp_path / "models")
    file = tmp_path / "keys.toml"
    assert main(["key", "new", "caller", "--file", str(file), "--models", "half*"]) == 0
    key = capsys.readouterr().out.strip()
    with RunningServer(tmp_path / "models", "--access-file", str(file)) as running:
        url = f"http://127.0.0.1:{running.http_port}"
        with headrace.Client(url, token=key) as client:
            assert client.predict("half_plus_two", {"x": [1.0, 5.0]})["y"].tolist() == [2.5, 4.5]
        with headrace.Client(url) as client, pytest.raises(Unauthenticated):
            client.predict("half_plus_two", {"x": [1.0]})
