"""Models of Vowpal Wabbit answer what VW answers; lines that it would misread are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import InvalidRows, LoadError, NotLoadable
from headrace.base.tensors import STRING, Array
from headrace.runtimes.options import RuntimeOptions, SignatureSettings
from headrace.runtimes.vw import VwServable, load
from headrace.runtimes.vw_file import read
from tests.conformance.vw_models import DATA, dump, known

ROUNDED = ("six-digits", "seed")
"""The dumps whose weights VW rounds to six digits."""

LINKED = ("logistic", "glf1", "poisson", "regularized")
"""Models whose answers are sums after a function, or whose weights are multiplied by a rounded number."""


def servable(name: str, **options: Any) -> VwServable:
    return VwServable(read(dump(name)), RuntimeOptions(options=options))


def answers(of: VwServable, *lines: str | bytes) -> Array:
    texts = [line.encode() if isinstance(line, str) else line for line in lines]
    return np.asarray(of.predict({"example": np.array([*texts, None], STRING)[:-1]})["prediction"])


def refused(of: VwServable, *lines: str | bytes) -> InvalidRows:
    with pytest.raises(InvalidRows) as raised:
        answers(of, *lines)
    return raised.value


@pytest.mark.parametrize("name", known()["models"])
def test_answers_are_those_of_vw(name: str) -> None:
    asked = [
        (line, answer)
        for line, answer in zip(known()["lines"], known()["models"][name]["answers"], strict=True)
        if "3.4e38" not in line
    ]
    found = answers(servable(name), *(line for line, _ in asked))
    expected = np.array([answer for _, answer in asked], np.float32)
    assert len(set(expected.tolist())) > 10
    if name in ROUNDED or name in LINKED:
        np.testing.assert_allclose(found, expected, rtol=3e-5, atol=3e-6)
    else:
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", known()["models"])
def test_lines_that_are_not_utf_8_are_bytes_as_for_vw(name: str) -> None:
    found = answers(servable(name), *(line.encode("latin-1") for line in known()["raw"]))
    np.testing.assert_allclose(found, known()["models"][name]["raw"], rtol=3e-5, atol=3e-6)


def test_an_example_without_features_is_the_constant() -> None:
    found = answers(servable("plain"), b"", b"  ", b"|", b"1 |", b"\n")
    assert len(set(found.tolist())) == 1
    assert found[0] != 0
    assert answers(servable("logistic"), b"").tolist() == [0.5]


def test_labels_importances_and_tags_are_ignored_and_a_base_is_added() -> None:
    bare = "|user age:1"
    heads = ("1 ", "-1 0.5 ", "x 2 ", "1 2 tag", "1 2 'tag ", "tag", "'tag ", "1 2 0 tag", "before\t1 ")
    found = answers(servable("pistol"), bare, *(head + bare for head in heads))
    assert len(set(found.tolist())) == 1
    based = answers(servable("pistol"), f"1 2 0.125 {bare}", f"1 2 -0.125 tag{bare}")
    np.testing.assert_allclose(based - found[0], [0.125, -0.125], rtol=1e-5)


@pytest.mark.parametrize(
    ("line", "byte", "said"),
    [
        ("age:31 city=oslo", 0, "expected '|' before the features"),
        ("1", 0, "expected '|'"),
        ("|user age\n|user age", 9, "a line end within it"),
        ("|user\rage", 5, "a line end within it"),
        ("|:1 age", 1, "the name of a namespace"),
        ("|user a |:x", 9, "the name of a namespace"),
        (b"|\x80 age", 1, "reserves for the constant"),
        ("|user:x age", 6, "the namespace's weight"),
        ("|user: age", 6, "the namespace's weight"),
        ("|user:nan age", 6, "the namespace's weight"),
        ("|user age: city", 10, "got nothing"),
        ("|user age:", 10, "got nothing"),
        ("|user age:nan", 10, "finite decimal number"),
        ("|user age:-inf", 10, "finite decimal number"),
        ("|user age:infinity", 10, "finite decimal number"),
        ("|user age:0x1F", 10, "finite decimal number"),
        ("|user age:12abc", 10, "finite decimal number"),
        ("|user age:1:2", 10, "finite decimal number"),
        ("|user age:1e400", 10, "float32"),
        ("|user:1e30 age:1e30", 15, "float32"),
        ("1 2 x |user", 0, "label importance base tag"),
        ("1 2 3 4 |user", 0, "label importance base tag"),
    ],
)
def test_a_line_that_vw_would_misread_is_refused_with_its_place(
    line: str | bytes, byte: int, said: str
) -> None:
    error = refused(servable("plain"), "|user fine", line)
    assert error.message.startswith(f"example: row 1, byte {byte}: expected") or byte == 1
    assert f"row 1, byte {byte}: " in error.message
    assert said in error.message
    assert list(error.rows) == [1]


def test_all_wrong_rows_are_named() -> None:
    assert list(refused(servable("plain"), "x", "|user a", "y", "|user a:nan").rows) == [0, 2, 3]


def test_a_sum_that_is_not_a_number_is_refused() -> None:
    error = refused(servable("any-pairs"), "|user a", "|user x:3e38 y:-3e38 z:3e38")
    assert "row 1: its values are so large" in error.message


def test_products_of_features_are_limited() -> None:
    pair = "|user a b c |item d e f g"
    assert len(answers(servable("pairs", products=12), pair)) == 1
    error = refused(servable("pairs", products=11), "|user a", pair)
    assert "row 1: makes more than 11 products of features; send fewer" in error.message
    assert list(error.rows) == [1]
    many = "|user" + " a" * 2000 + " |item" + " b" * 2000
    assert "more than 1000000 products" in refused(servable("pairs"), many).message


def test_combinations_of_namespaces_are_limited() -> None:
    many = " ".join(f"|{chr(first)} a" for first in range(ord("A"), ord("Z") + 1))
    assert len(answers(servable("any-pairs"), many)) == 1
    more = many + " " + many.lower()
    error = refused(servable("any-triples"), "|user a", more)
    assert "row 1: ':' makes 26289 interactions of its namespaces, more than 5000; send" in error.message
    assert list(error.rows) == [1]


def test_a_long_line_is_answered() -> None:
    """Sums are float32 from left to right, as VW's."""
    of = servable("plain")
    constant, once = answers(of, "|", "|user age").tolist()
    found = answers(of, "|user" + " age:0" * 100_000 + " age |item" + " :0" * 100_000)
    np.testing.assert_allclose(found, [once], rtol=1e-6)
    assert once != constant


def test_rows_of_a_batch_do_not_change_one_another() -> None:
    lines = [line for line in known()["lines"] if "3.4e38" not in line]
    for name in ("pairs", "any-pairs", "any-triples", "wide"):
        of = servable(name)
        alone = [answers(of, line).item() for line in lines]
        assert answers(of, *lines, *lines[::-1]).tolist() == [*alone, *alone[::-1]]


def test_rows_with_many_different_namespaces_are_answered_as_alone() -> None:
    """Their interactions are more than are held at once."""
    letters = [chr(first) for first in range(ord("A"), ord("A") + 31)]
    lines = [" ".join(f"|{one} x:{row + 1}" for one in letters if one != letters[row]) for row in range(31)]
    of = servable("any-pairs")
    found = answers(of, *lines).tolist()
    assert found == [answers(of, line).item() for line in lines]
    assert len(set(found)) > 20


def test_options_and_the_signature(tmp_path: Path) -> None:
    (tmp_path / "model.vw.txt").write_bytes(dump("pairs"))
    found = load(tmp_path / "model.vw.txt", RuntimeOptions())
    (signature,) = found.signatures.values()
    assert (signature.kind, str(signature.inputs[0])) == ("regress", "example BYTES [rows]")
    kind = RuntimeOptions(signature=SignatureSettings(kind="classify"))
    assert load(tmp_path / "model.vw.txt", kind).signatures["serving_default"].kind == "classify"
    for products, said in ((0, "expected 1 or more, got 0"), ("many", "expected int, got 'many'")):
        with pytest.raises(NotLoadable, match=rf"runtime\.options\.products: {said}"):
            load(tmp_path / "model.vw.txt", RuntimeOptions(options={"products": products}))


def test_a_dump_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    file = tmp_path / "churn.vw.txt"
    with pytest.raises(LoadError, match=r"cannot read churn\.vw\.txt: No such file"):
        load(file, RuntimeOptions())
    file.write_bytes(b"Version 9\n")
    with pytest.raises(LoadError, match=r"cannot read churn\.vw\.txt as a text dump of Vowpal Wabbit"):
        load(file, RuntimeOptions())
    file.write_bytes(known()["refused"]["--lrq ui2"].encode())
    with pytest.raises(NotLoadable, match=r"churn\.vw\.txt: the model needs VW's option --lrq, which"):
        load(file, RuntimeOptions())


def test_the_data_are_those_that_the_script_makes() -> None:
    """``make.py`` lists each model, and each has its dump here."""
    script = (DATA / "make.py").read_text("utf-8")
    for name in known()["models"]:
        assert f'"{name}"' in script
    assert {file.name.removesuffix(".vw.txt") for file in DATA.glob("*.vw.txt")} == set(known()["models"])
