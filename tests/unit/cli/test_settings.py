"""Every setting as an option, a variable and a key of a file: one mechanism, for all verbs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import tomli_w

from headrace.base.errors import ConfigError
from headrace.cli import common, settings
from headrace.cli.main import build_parser, main

PARSER = build_parser()
VERBS = {verb.prog.partition(" ")[2]: verb for verb in common.all_verbs(PARSER)}
WORDS = ("3", "0.5", "a*b", "3:7", "x", "http://x")  # one of them will do for any setting


REQUIRED = {
    "stream encode": ("--format", "csv"),
    "sign": ("--key", "x"),
    "archive put": ("--keys", "x"),
    "archive join": ("--inputs", "x"),
    "archive drop": ("--models", "x"),
}


@pytest.mark.parametrize("words", REQUIRED)
def test_the_help_shows_required_options_as_required(words: str) -> None:
    option = REQUIRED[words][0]
    told = " ".join(VERBS[words].format_help().split())
    usage, _, options = told.partition("positional arguments:")
    assert f" {option} " in usage
    assert f"[{option} " not in usage
    variable = f"HEADRACE_{words}_{option[2:]}".replace(" ", "_").upper()
    assert f"(required) [{variable}]" in options
    assert parsed(words) is not None  # a variable or a file may give it all the same


def all_settings() -> list[tuple[str, str]]:
    return [(words, key) for words, verb in VERBS.items() for key in verb.get_default("settings").actions]


def positionals(words: str) -> list[str]:
    wanted = [action for action in VERBS[words]._actions if not action.option_strings]
    return ["x" for action in wanted if action.nargs != "?"]


def parsed(words: str, *given: str, complete: bool = True, **environment: str) -> argparse.Namespace:
    """Settings of a verb; what it requires is added, where that is not given."""
    command = [*words.split(), *positionals(words), *given]
    option, value = REQUIRED.get(words, ("", ""))
    variable = f"HEADRACE_{words}_{option[2:]}".replace(" ", "_").upper()
    if complete and option and option not in " ".join(given) and variable not in environment:
        command += [option, value]
    return settings.parse(PARSER, command, environment)


def sample(words: str, key: str) -> tuple[list[str], str, object]:
    """A value that a setting may have: as words, as a variable, and as TOML."""
    action = VERBS[words].get_default("settings").actions[key]
    name = action.option_strings[-1]
    if action.nargs == 0:
        return [name], "true", True
    for word in [str(one) for one in action.choices or ()] or WORDS:
        try:
            parsed(words, f"{name}={word}")
        except (ConfigError, SystemExit):
            continue
        return [f"{name}={word}"], word, [word] if isinstance(action, argparse._AppendAction) else word
    raise AssertionError(f"{words} {name}: none of {WORDS} will do; add a word that does")


@pytest.mark.parametrize(("words", "key"), [one for one in all_settings() if one[1] != "config"])
def test_a_setting_is_the_same_wherever_it_comes_from(
    words: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, variable, toml = sample(words, key)
    name = VERBS[words].get_default("settings").variable(key)
    wanted = getattr(parsed(words, *given), key)
    assert getattr(parsed(words, **{name: variable}), key) == wanted
    if key != "json" and key not in VERBS[words].get_default("own_keys"):
        if "." in key:
            return  # one of the server's own tables
        file = tmp_path / "settings.toml"
        file.write_text(tomli_w.dumps({key: toml}))
        is_required = REQUIRED.get(words, ("",))[0] == f"--{key}"
        assert getattr(parsed(words, f"--config={file}", complete=not is_required), key) == wanted


def test_the_version_of_a_space_has_an_environment_variable() -> None:
    """`--version` of some verbs was taken for the one that prints headrace's."""
    name = "HEADRACE_ARCHIVE_LOOKUP_VERSION"
    assert name in VERBS["archive lookup"].format_help()
    assert parsed("archive lookup", **{name: "2"}).version == 2


def test_names_of_variables_are_all_different() -> None:
    names = [VERBS[words].get_default("settings").variable(key) for words, key in all_settings()]
    assert len(set(names)) == len(names)
    assert "HEADRACE_SERVE_LIMITS_MAX_VALUES" in names
    assert "HEADRACE_STREAM_GENERATE_ROWS" in names


def test_an_option_wins_over_a_variable_over_a_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "profile.toml"
    file.write_text("rows = 2\ntraining = true\n")
    there = {"HEADRACE_PROFILE_CONFIG": str(file)}
    assert parsed("profile").rows == 32
    assert parsed("profile", **there).rows == 2
    assert parsed("profile", **there, HEADRACE_PROFILE_ROWS="3").rows == 3
    found = parsed("profile", "--rows", "4", **there, HEADRACE_PROFILE_ROWS="3")
    assert (found.rows, found.training) == (4, True)
    assert parsed("profile", "--no-training", **there).training is False
    assert parsed("profile", **there, HEADRACE_PROFILE_TRAINING="false").training is False
    assert parsed("profile", HEADRACE_PROFILE_ROWS="").rows == 32, "empty is not set"


def test_repeatable_settings_are_comma_separated_and_replaced_by_an_option() -> None:
    assert parsed("train", HEADRACE_TRAIN_SLICE="a,b").slice == ["a", "b"]
    assert parsed("train", "--slice", "c", HEADRACE_TRAIN_SLICE="a,b").slice == ["c"]
    assert parsed("stream encode", HEADRACE_STREAM_ENCODE_CONTEXT="a,b").context == ["a", "b"]


def test_a_server_of_an_archive_takes_all_tables_of_its_file_and_paths_from_where_it_lies(
    tmp_path: Path,
) -> None:
    from headrace.cli.archive.serve import _config

    file = tmp_path / "server.toml"
    file.write_text(
        'http_port = 1\nsigning_keys = "k.pem"\n[access]\nfile = "keys.toml"\n'
        '[cors]\norigins = ["https://a.example"]\n[limits]\nmax_values = 4\n'
    )
    found = _config(parsed("archive serve", "--config", str(file), "--http-port", "6"))
    assert (found.http_port, found.limits.max_values) == (6, 4)
    assert (found.signing_keys, found.access.file) == (tmp_path / "k.pem", tmp_path / "keys.toml")
    assert found.cors.origins == ("https://a.example",)


def test_the_server_takes_all_its_settings_from_any_of_the_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.cli.serve import _config

    file = tmp_path / "server.toml"
    file.write_text(
        "http_port = 1\ngrpc_port = 2\nload_threads = 3\n[limits]\nmax_values = 4\nmax_json_depth = 5\n"
    )
    words = ["serve", str(tmp_path), "--config", str(file), "--http-port", "6", "--limits-max-values", "7"]
    found = settings.parse(
        build_parser(), words, {"HEADRACE_SERVE_GRPC_PORT": "8", "HEADRACE_SERVE_ADMIN": "yes"}
    )
    config = _config(found)
    assert (config.http_port, config.grpc_port, config.load_threads, config.admin) == (6, 8, 3, True)
    assert (config.limits.max_values, config.limits.max_json_depth) == (7, 5)


WRONG = {
    "no number": (
        ["profile", "x"],
        {"HEADRACE_PROFILE_ROWS": "many"},
        "HEADRACE_PROFILE_ROWS: expected a whole",
    ),
    "out of bounds": (
        ["profile", "x"],
        {"HEADRACE_PROFILE_ROWS": "0"},
        "HEADRACE_PROFILE_ROWS: expected a whole",
    ),
    "no word of those": (
        ["train", "x"],
        {"HEADRACE_TRAIN_MODEL": "gbdt"},
        "HEADRACE_TRAIN_MODEL: expected one of 'lr', 'fm'",
    ),
    "no number of those": (
        ["train", "x"],
        {"HEADRACE_TRAIN_QUANTIZE": "half"},
        "HEADRACE_TRAIN_QUANTIZE: expected one of 16, 8 (see --quantize), got 'half'",
    ),
    "no switch": (
        ["train", "x"],
        {"HEADRACE_TRAIN_PATCH": "maybe"},
        "HEADRACE_TRAIN_PATCH: expected true or false",
    ),
    "found wrong only by the server": (
        ["serve", "."],
        {"HEADRACE_SERVE_HTTP_PORT": "70000"},
        "HEADRACE_SERVE_HTTP_PORT: expected a whole number, 0 to 65535, got 70000",
    ),
    "a limit of the server's": (
        ["serve", "."],
        {"HEADRACE_SERVE_LIMITS_MAX_VALUES": "0"},
        "HEADRACE_SERVE_LIMITS_MAX_VALUES: expected a whole number, 1 or more, got 0",
    ),
    "found wrong only by the model": (
        ["train", "/dev/null"],
        {"HEADRACE_TRAIN_FACTORS": "0"},
        "HEADRACE_TRAIN_FACTORS: expected a number, at least 1",
    ),
    "a file that is missing": (
        ["versions", "."],
        {"HEADRACE_VERSIONS_CONFIG": "no-such-file"},
        "config: no-such-file cannot be read",
    ),
}


@pytest.mark.parametrize(("words", "environment", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_said_with_where_it_comes_from(
    words: list[str],
    environment: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"headrace: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rows = 'many'", "rows: expected a whole number, got 'many'"),
        ("rows = [1]", "rows: expected a text or a number"),
        ("training = 3", "training: expected true or false, got 3"),
        ("training = 0x" + "f" * 4000, "training: expected a whole number of at most 64 bits, got a number"),
        ("row = 3", "row: unknown setting; did you mean rows?"),
        ("json = true", "json: unknown setting; known: "),
    ],
)
def test_a_wrong_file_is_said_with_the_key(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text(text)
    assert main(["profile", "x", "--config", str(tmp_path / "p.toml")]) == 2
    assert capsys.readouterr().err.startswith(f"headrace: config: {tmp_path}/p.toml: {said}")


def test_required_settings_may_come_from_a_variable(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["stream", "encode", "x"]
    assert settings.parse(PARSER, words, {"HEADRACE_STREAM_ENCODE_FORMAT": "vw"}).format == "vw"
    with pytest.raises(SystemExit):
        settings.parse(PARSER, words, {})
    assert "required: --format" in capsys.readouterr().err


def test_a_misspelt_variable_is_reported() -> None:
    def doubts(verb: str, *names: str) -> dict[str, str]:
        found: dict[str, str] = parsed(verb, **dict.fromkeys(names, "1")).doubts
        return found

    assert doubts("serve", "HEADRACE_SERVE_HTPP_PORT") == {
        "HEADRACE_SERVE_HTPP_PORT": "HEADRACE_SERVE_HTPP_PORT is not a setting of headrace serve; "
        "did you mean HEADRACE_SERVE_HTTP_PORT?"
    }
    assert "HEADRACE_SERVE_HTTP_PORT?" in doubts("serve", "HEADRACE_HTTP_PORT")["HEADRACE_HTTP_PORT"]
    # Other verbs' variables, and those that Kubernetes makes of a service called headrace, are none of ours.
    assert not doubts("serve", "HEADRACE_TRAIN_ROWS", "HEADRACE_SERVICE_HOST", "HEADRACE_PORT_8501_TCP_ADDR")
