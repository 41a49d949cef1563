"""Trains small models with Vowpal Wabbit itself, and writes their dumps and VW's answers beside this file.

It runs in an environment with VW: ``pip install vowpalwabbit==9.11.9``, then ``python make.py``. The dumps
have hexadecimal weights, which are exact, unless the model's options say otherwise.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import vowpalwabbit

HERE = Path(__file__).resolve().parent

MODELS = {
    "plain": "",
    "six-digits": "",
    "names": "",
    "pairs": "-q ui -q iu",
    "any-pairs": "-q ::",
    "own-pairs": "-q uu -q u\\x20 --interactions iiu",
    "triples": "--interactions uic --cubic aab",
    "any-triples": "--interactions ::: -q a: --interactions abca -b 12",
    "logistic": "--link logistic --loss_function logistic --noconstant -b 10",
    "glf1": "--link glf1 --loss_function logistic -q ui",
    "poisson": "--link poisson --loss_function poisson -b 24",
    "hash-all": "--hash all --hash_seed 7 -q ui",
    "seed": "--hash_seed 123456 --predict_only_model",
    "ignored": "--ignore a --ignore b --ignore_linear u -q ui",
    "kept": "--keep u --keep i -q ui",
    "regularized": "--l1 1e-3 --l2 1e-3 -q ui",
    "ftrl": "--ftrl -q ui",
    "pistol": "--pistol",
    "sgd": "--sgd -l 0.01",
    "sparse": "--sparse_weights -b 24",
    "wide": "-b 28 -q ui",
}
OTHERS = (  # their dumps are refused
    "--lrq ui2", "--nn 2", "--oaa 3", "--ngram 2", "--redefine a:=u", "--binary", "--coin", "--affix +2u",
    "--spelling u", "--csoaa 2", "--cb_explore 2", "--rank 2 -q ui", "--lda 2", "--autolink 2",
    "--experimental_full_name_interactions user|item", "--ngram 2 --skips 1", "--svrg", "--boosting 2",
)  # fmt: skip
ODD = [
    "|user age:31 city=oslo |item id_7",
    "1 |user age:31 |item id_7",
    "1 0.5 |user age:31 |item id_7",
    "-1 2.0 0.25 |user age:31 |item id_7",
    "-1 2.0 -1.5 tag|user age:31 |item id_7",
    "0 'tag |user age:31 |item id_7",
    "tag|user age:31 |item id_7",
    "'tag |user age:31 |item id_7",
    "ignored\t1 |user age:31 |item id_7",
    "",
    "|",
    "| ",
    "| |user",
    "|user | plain",
    "| plain words:2 here:0.5",
    "|user:0.5 age:31 city=oslo",
    "|user:2 age:31 city:oslo 12 | plain:3",
    "|user 12 7:0.5 007 00 4294967296 99999999999999999999",
    "|12 3 x |0 12",
    "|user :3 :4 :0 :5 name:1 :7",
    "|user city:oslo city:berlin city:12",
    "|user :oslo :12 city:a:b city:x|item id_7",
    "|user a:1 a:1 a a b:2",
    "|user x:1e2 y:1E-2 z:-.5 w:.25 v:5. u:1e+2 t:+3",
    "|user x:-0 y:- z:. w:e v:e5 u:0",
    "|user x:123456789.123456789 y:0.1234567890123 z:3.4e38 w:1e-37 v:1e-45",
    "|user x:1.5|item id_7:2.25|a x",
    "|user x:0.1|item y:0.3 z:1e-3|a w:123.456",
    "|user x:-|item id_7",
    "|item id_7 |user age:3 |item id_8:2 |i x |iu y",
    "|a x y z |b x y |c x |a w",
    "|user naïve=日本 emoji😀:2 |é ünï |item id_7",
    "|user\tage:31\tcity=oslo \t |item\tid_7 ",
    "|user  age:31   city=oslo  ",
    "|user \x01\x02 x\x1f:2 \x0b12\x0b",
    "|user a*b^c=d,e;f(g)[h]{i}\"j'k\\l/m?n!o@p#q$r%s&t~u`v<w>x:2",
    "|user age:31\n",
]
RAW = [b"|user \xff\xfe b\xe9:2 |item id_7", b"|\xe9\xff x |user \x80\x81 |item \xc3"]
"""Lines that are not UTF-8. VW reads them from a file, and writes six digits."""

WORDS = ["age", "city=oslo", "id_7", "id_8", "x", "y", "z", "w", "12", "7", "plain", "ünï", "a"]
SPACES = ["user", "item", "a", "b", "c", "", "iu", "é", "12", "b2"]


def line(chance: random.Random) -> str:
    """An example without a label."""
    made = []
    for space in chance.sample(SPACES, chance.randint(1, 5)):
        weight = f":{chance.choice(['0.5', '2'])}" if space and chance.random() < 0.2 else ""
        features = []
        for word in chance.choices(WORDS, k=chance.randint(0, 5)):
            value = chance.choice(["", "", f":{chance.uniform(-2, 2):.4g}", ":1e-1", ":oslo", ":3"])
            features.append(("" if chance.random() < 0.05 and value else word) + value)
        made.append(f"|{space}{weight} {' '.join(features)}")
    return " ".join(made)


def answers(model: Path, rows: list[str]) -> list[float]:
    """What VW predicts."""
    vw = vowpalwabbit.Workspace(f"--quiet -t -i {model}")
    found = [vw.predict(row) for row in rows]
    vw.finish()
    return found


def answers_of_file(model: Path, rows: list[bytes], folder: Path) -> list[float]:
    """The same for lines that are no text."""
    (folder / "rows").write_bytes(b"\n".join(rows) + b"\n")
    vw = vowpalwabbit.Workspace(f"--quiet -t -i {model} -d {folder}/rows -p {folder}/answers")
    vw.run_parser()
    vw.finish()
    return [float(one) for one in (folder / "answers").read_text().split()]


def train(options: str, rows: list[str], dump: Path, model: Path) -> None:
    """Train on rows with labels."""
    chance = random.Random(2)
    vw = vowpalwabbit.Workspace(f"--quiet {options} --readable_model {dump} -f {model}")
    for row in rows:
        label = chance.choice([1, 2, 3]) if "poisson" in options else chance.choice([-1, 1])
        vw.learn(f"{label} {row}")
    vw.finish()


def header(options: str, dump: Path) -> str:
    """The header of the dump of a model without examples."""
    vowpalwabbit.Workspace(f"--quiet {options} --readable_model {dump}").finish()
    return dump.read_text("latin-1").partition("\nChecksum")[0] + "\nChecksum: 0\n"


def main() -> None:
    """Write all files; an argument is the number of random lines to answer."""
    chance = random.Random(1)
    more = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    rows = [line(chance) for _ in range(60)]
    asked = ODD + [line(chance) for _ in range(more)]
    known = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, options in MODELS.items():
            exact = "" if model == "six-digits" else "--hexfloat_weights "
            learnt = rows[:10] if model.startswith("any") else rows + ODD[:-1] * (model == "names")
            train(exact + options, learnt, HERE / f"{model}.vw.txt", folder / "model")
            known[model] = {
                "answers": answers(folder / "model", asked),
                "raw": answers_of_file(folder / "model", RAW, folder),
            }
        files = f"--invert_hash {HERE}/inverted.vw.txt -f {folder}/model"
        vw = vowpalwabbit.Workspace(f"--quiet -q ui --hexfloat_weights {files}")
        for row in rows:
            vw.learn(f"1 {row}")
        vw.finish()
        known["inverted"] = {
            "answers": answers(folder / "model", asked),
            "raw": answers_of_file(folder / "model", RAW, folder),
        }
        refused = {options: header(options, folder / "dump") for options in OTHERS}
    written = {"lines": asked, "raw": [one.decode("latin-1") for one in RAW], "models": known}
    (HERE / "answers.json").write_text(json.dumps({**written, "refused": refused}, indent=1) + "\n")


if __name__ == "__main__":
    main()
