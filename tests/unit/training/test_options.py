"""Settings survive the way through TOML, and single ones are changed by name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.config.toml_reader import read_table
from headrace.ctr.model_settings import Interaction, ModelSettings, Optimizer
from headrace.training.options import changed, settings_of, to_toml


def test_settings_survive_the_way_through_toml() -> None:
    settings = ModelSettings(
        kind="ffm",
        hidden=(),
        interactions=(Interaction(fields=('a"b', "c\\d"), buckets=100),),
        embeddings=Optimizer(kind="sgd", learning_rate=1e-05),
    )
    assert settings_of(tomllib.loads(to_toml(settings)), "config") == settings


def test_a_dotted_name_changes_one_setting_of_a_group() -> None:
    values = {"kind": "fm", "embeddings": {"kind": "sgd"}}
    made = changed(values, {"embeddings.learning_rate": 0.5, "network": {"kind": "sgd"}, "factors": 4})
    assert made == {
        "kind": "fm",
        "embeddings": {"kind": "sgd", "learning_rate": 0.5},
        "network": {"kind": "sgd"},
        "factors": 4,
    }
    assert values == {"kind": "fm", "embeddings": {"kind": "sgd"}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kinds": "fm"}, r"config: .*kinds: unknown setting; did you mean kind\?"),
        ({"kind": "tree"}, "config: .*kind"),
        ({"factors": 0}, "config: factors: expected a number, at least 1"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(values, "config")


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config: .* cannot be read: No such file"):
        read_table(tmp_path / "missing.toml", "config: missing.toml")
    (tmp_path / "bad.toml").write_text("kind = ")
    with pytest.raises(ConfigError, match=r"config: .*bad.toml: not TOML"):
        read_table(tmp_path / "bad.toml", "config: bad.toml")
