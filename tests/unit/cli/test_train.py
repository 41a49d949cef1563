"""The options of ``headrace train`` become settings; wrong ones are refused in words."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.cli import settings, train
from headrace.cli.main import build_parser, main
from headrace.ctr.model_settings import IN_BATCHES, KINDS, ModelSettings, Optimizer, forgetting_of
from headrace.training.options import settings_of
from headrace.training.releasing.publishing import DEFAULT_KEEP


def parsed(*words: str) -> argparse.Namespace:
    return settings.parse(build_parser(), ["train", *words], {})


def test_options_change_the_settings_that_they_name() -> None:
    words = "--model deepffm --factors 4 --hidden 32-16 --learning-rate 0.1 --optimizer sgd --interaction a*b"
    assert train.model_settings(parsed(*words.split(), "--batch-rows", "64", "--seed", "3")) == {
        "kind": "deepffm",
        "factors": 4,
        "hidden": [32, 16],
        "batch_rows": 64,
        "seed": 3,
        "interactions": [{"fields": ["a", "b"]}],
        "linear": {"kind": "sgd", "learning_rate": 0.1},
        "embeddings": {"kind": "sgd", "learning_rate": 0.1},
    }


def test_repeated_options_that_hold_several_add_up() -> None:
    words = "--hidden 32,16 --hidden 8 --interaction a*b --interaction a*c"
    found = train.model_settings(parsed(*words.split()))
    assert found == {"hidden": [32, 16, 8], "interactions": [{"fields": ["a", "b"]}, {"fields": ["a", "c"]}]}


def test_options_win_over_the_file_and_leave_the_rest_of_it(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text('kind = "fm"\nfactors = 2\ninteractions = [{fields = ["x", "y"]}]\n[linear]\nl2 = 0.5\n')
    found = train.model_settings(
        parsed("--config", str(file), "--model", "lr", "--interaction", "a*b", "--optimizer", "adagrad")
    )
    assert found["kind"] == "lr"
    assert found["factors"] == 2
    assert found["interactions"] == [{"fields": ["x", "y"]}, {"fields": ["a", "b"]}]
    assert found["linear"] == {"l2": 0.5, "kind": "adagrad"}


def test_forgetting_has_its_own_default_rates() -> None:
    found = train.model_settings(parsed("--optimizer", "forgetting", "--model", "fm"))
    made = settings_of(found, "x")
    assert (made.linear.learning_rate, made.embeddings.learning_rate) == (0.2, 0.1)
    made = settings_of(train.model_settings(parsed("--optimizer", "forgetting")), "x")
    assert (made.kind, made.linear, made.embeddings) == ("deepfm", IN_BATCHES, IN_BATCHES)
    assert made.half_life_rows == 200_000


@pytest.mark.parametrize("kind", KINDS)
def test_forgetting_by_option_equals_the_default(kind: str) -> None:
    told = train.model_settings(parsed("--optimizer", "forgetting", "--model", kind))
    assert settings_of(told, "x") == settings_of({"kind": kind}, "x")


def test_ftrl_is_for_linear_weights_only() -> None:
    found = train.model_settings(parsed("--optimizer", "ftrl"))
    assert found == {"linear": {"kind": "ftrl"}}


def test_adam_comes_with_a_rate_that_fits_it() -> None:
    found = train.model_settings(parsed("--optimizer", "lazy_adam"))
    assert found["embeddings"] == {"kind": "lazy_adam", "learning_rate": 0.001}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hidden", "many"], "hidden: expected widths such as 128,64, got 'many'"),
        (["--interaction", "a+b"], "interaction: expected two fields such as site"),
        (["--every-rows", "5"], "publish: --every-rows and --every-seconds need --publish DIR/NAME"),
        (["--every-rows", "-5"], "every-rows: expected a whole number, 0 or more, got -5"),
        (["--checkpoint-every-rows", "5"], "checkpoint: an interval is given, but no directory"),
        (["--model", "lr", "--factors", "4"], "factors: lr has no embeddings; leave --factors out"),
        (["--model", "fm", "--hidden", "3"], "hidden: fm has no network; leave --hidden out, or use deepfm"),
        (
            ["--quantize", "16", "--patch"],
            "publish: --quantize, --patch would have no effect; add --publish DIR/",
        ),
        (["--replace"], "publish: --replace would have no effect"),
        (
            ["--server-config", "s.toml"],
            "publish: --server-config would have no effect; add --publish DIR/NAME",
        ),
        (["--search", "s.toml", "--patch"], "search: cannot be combined with --patch"),
        (["--search", "s.toml", "--server-config", "f"], "search: cannot be combined with --server-config"),
        (["--rows", "0"], "rows: expected a whole number"),
        (["--resume"], "resume: there is no checkpoint to resume from"),
        (["--continued"], "continued: --continued requires --resume"),
        (["--model", "keras"], "keras: --model keras and --keras FILE.py:FUNCTION go together"),
        (
            ["--model", "keras", "--keras", "m.py:build", "--quantize", "8", "--learning-rate", "0.1"],
            "keras: --learning-rate, --quantize belongs to headrace's own models",
        ),
        (
            ["--search", "s.toml", "--label-delay-seconds", "9"],
            "search: cannot be combined with --label-delay-seconds; leave one of",
        ),
        (["/missing/rows"], "input: /missing/rows cannot be opened: No such file"),
        (["--schema", "/missing/schema"], "schema: /missing/schema cannot be read: No such file"),
        (["--window-rows", "0"], "window-rows: expected a whole number, 1 or more, got 0"),
        (["--factors", "0"], "--factors: expected a number, at least 1"),
    ],
)
def test_wrong_options_are_refused_in_words(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_terminal_is_no_stream(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    assert main(["train"]) == 2
    assert "standard input is a terminal; pipe a stream into it" in capsys.readouterr().err


def test_a_missing_compiler_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "headrace.training.run_session", None)
    monkeypatch.delattr("headrace.training.run_session", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[train\]'"):
        train.run(parsed())


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("factor = 4", [], r"config: .*m\.toml: factor: unknown setting; did you mean factors\?"),
        ('kind = "gbdt"', [], r"config: .*m\.toml: kind: expected one of 'lr', 'fm', .*, got 'gbdt'"),
        ("[linear]\nrate = 1.0", [], r"config: .*m\.toml: linear\.rate: unknown setting; known: kind, "),
        ("factors = 0", ["--seed", "1"], r"config: .*m\.toml: factors: expected a number, at least 1"),
    ],
)
def test_errors_in_a_settings_file_name_the_file_and_the_known_keys(
    text: str, words: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        train.model_settings(parsed("--config", str(tmp_path / "m.toml"), *words))


def test_a_wrong_option_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("factors = 0")
    assert train.model_settings(parsed("--config", str(tmp_path / "m.toml"), "--factors", "2"))
    (tmp_path / "m.toml").write_text("factors = 2")
    found = train.model_settings(parsed("--config", str(tmp_path / "m.toml"), "--factors", "5000"))
    assert found == {"factors": 5000}


def test_help_tells_the_defaults_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    model = ModelSettings()
    hidden = ",".join(map(str, model.hidden))
    for value in (model.factors, hidden, model.batch_rows, model.seed):
        assert f"(default {value})" in said
    assert f"(default {model.linear.kind}; {Optimizer().kind} with --learning-rate alone)" in said
    rates = {}
    for kind in ("fm", "deepfm", "mdn", "deepffm"):
        linear, embeddings = forgetting_of(kind)
        rates[kind] = f"{linear.learning_rate:g} and {embeddings.learning_rate:g}"
    assert (
        f"(defaults with {model.linear.kind}: {rates['fm']}; in a deepfm or mdn {rates['deepfm']}; "
        f"in a deepffm {rates['deepffm']}. With adam and lazy_adam " in said
    )
    assert rates["mdn"] == rates["deepfm"]
    assert f"others {Optimizer().learning_rate:g})" in said
    assert f"versions stay; 0 = all (default {DEFAULT_KEEP})" in said
