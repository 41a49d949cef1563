"""The verbs that look at a whole space: neighbours, duplicates, plot; on digits in a real archive."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.cli.main import main
from tests.unit.similarity.spaces import digits

Said = pytest.CaptureFixture[str]
COUNT = 300


@pytest.fixture
def archive(tmp_path: Path, capsys: Said) -> Path:
    """An archive with 300 digits, and ten of them once more, by addresses of images."""
    file = tmp_path / "archive.toml"
    content = 'content = "https://images.example/{key}.png"'
    file.write_text(
        f'[spaces.digits]\ndimension = 64\ndtype = "int8"\n{content}\n[spaces.none]\ndimension = 2\n'
    )
    vectors, labels = digits()
    np.save(tmp_path / "vectors.npy", np.concatenate([vectors[:COUNT], vectors[:10]]))
    keys = [f"digit {row}" for row in range(COUNT)] + [f"copy {row}" for row in range(10)]
    (tmp_path / "keys.txt").write_text("\n".join(keys) + "\n")
    (tmp_path / "labels.csv").write_text("".join(f"digit {row},{labels[row]}\n" for row in range(COUNT)))
    put = ["archive", "put", "digits", str(tmp_path / "vectors.npy"), "--keys", str(tmp_path / "keys.txt")]
    assert main([*put, "--archive", str(file)]) == 0
    capsys.readouterr()
    return file


def run(archive: Path, *words: str) -> int:
    return main(["archive", *words, "--archive", str(archive)])


@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_neighbours_of_a_key(archive: Path, capsys: Said, metric: str) -> None:
    assert run(archive, "neighbours", "digits", "digit 3", "--count", "4", "--metric", metric, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["space"], said["version"], said["key"], said["metric"]) == ("digits", 1, "digit 3", metric)
    assert len(said["neighbours"]) == 4
    if metric != "dot":
        first = said["neighbours"][0]
        assert first == {"key": "copy 3", "similarity": 1.0 if metric == "cosine" else 0.0}
    similar = [one["similarity"] for one in said["neighbours"]]
    assert similar == sorted(similar, reverse=metric != "l2")


def test_neighbours_as_a_table(archive: Path, capsys: Said) -> None:
    assert run(archive, "neighbours", "digits", "digit 3", "--count", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "digits, version 1: the nearest to digit 3 of 310"
    assert lines[2].split() == ["1.0000", "copy", "3"]
    assert len(lines) == 4


def test_duplicates_as_a_table_as_json_and_as_a_sheet(archive: Path, capsys: Said, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.html"
    assert run(archive, "duplicates", "digits", "--threshold", "0.999", "--sheet", str(sheet)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "digits, version 1: 310 keys, cosine 0.999 or more"
    assert (
        lines[1].strip()
        == "10 groups; 10 keys beyond one of each group, 10 of them with an equal vector; 10 pairs"
    )
    assert len(lines) == 14
    assert lines[-1] == f"wrote {sheet}"
    page = sheet.read_text("utf-8")
    assert page.count("<section>") == 10
    assert 'src="https://images.example/copy%207.png"' in page
    assert run(archive, "duplicates", "digits", "--threshold", "0.999", "--groups", "3", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["group_count"], said["pair_count"], said["recall"], len(said["groups"])) == (10, 10, 1.0, 3)
    names = {one["key"].split()[1] for one in said["groups"][0]["keys"]}
    assert len(names) == 1
    assert run(archive, "duplicates", "digits", "--threshold", "0.999", "--groups", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 1 + 3 + 1
    assert lines[-1] == "  … 7 more groups; --json --groups 10 lists them"


def test_duplicates_by_distance_chain_until_most_are_one_group(archive: Path, capsys: Said) -> None:
    assert (
        run(archive, "duplicates", "digits", "--metric", "l2", "--threshold", "30", "--exact", "--json") == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["groups"][0]["size"] > 100
    assert said["groups"][0]["keys"][0]["similarity"] == 0.0


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_a_plot_by_labels_or_clusters(archive: Path, capsys: Said, tmp_path: Path, method: str) -> None:
    out = tmp_path / "space.png"
    words = ["plot", "digits", "--method", method, "--out", str(out), "--most", "60"]
    labels = ["--labels", str(tmp_path / "labels.csv")] if method == "pca" else []
    assert run(archive, *words, *labels, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["file"], said["method"], said["key_count"], said["drawn"]) == (str(out), method, 310, 60)
    assert (said["explained"] is None) == (method == "tsne")
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["neighbours", "digits", "none"],
            2,
            "'none' has no vector in version 1 of 'digits'; headrace archive put",
        ),
        (["neighbours", "letters", "a"], 2, "no space 'letters'"),
        (["neighbours", "digits", "digit 1", "--version", "7"], 2, "version 7"),
        (["neighbours", "digits", "digit 1", "--most-bytes", "9"], 2, "expected at most 9 bytes of vectors"),
        (
            ["duplicates", "digits", "--most-comparisons", "99"],
            2,
            "--most-comparisons: expected at most 99 comparisons",
        ),
        (["duplicates", "digits", "--threshold", "1.01"], 2, "--threshold: expected a cosine, up to 1"),
        (
            ["duplicates", "digits", "--sheet", "/nowhere/x.html"],
            1,
            "--sheet: /nowhere/x.html cannot be written",
        ),
        (["plot", "none"], 2, "expected at least 3 vectors to lay out, got 0"),
        (["plot", "digits", "--out", "x.jpg"], 2, "expected a file ending in .png"),
        (["plot", "digits", "--out", "/nowhere/x.png"], 1, "cannot be written"),
        (["plot", "digits", "--labels", "/nowhere.csv"], 1, "--labels: /nowhere.csv cannot be read"),
    ],
)
def test_errors_are_one_line(archive: Path, capsys: Said, words: list[str], code: int, said: str) -> None:
    assert run(archive, *words) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,c\n", "line 1: expected key,label, got 3 cells"),
        ('"a', "expected CSV"),
        ("x,1\n", "it has none of the keys drawn"),
    ],
)
def test_labels_that_are_none_are_refused(
    archive: Path, capsys: Said, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text(text)
    words = ["plot", "digits", "--labels", str(file), "--out", str(tmp_path / "x.png")]
    assert run(archive, *words) == 2
    assert said in capsys.readouterr().err
