"""The archive's demonstration as a whole, on few films: it shows what it says that it shows."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIKED, DISLIKED = ("A Love Story in", "Wedding in"), ("Murder in", "War in")
PLACES = ("Paris", "London", "Rome", "Tokyo", "Cairo", "Oslo", "Lima", "Delhi", "Boston", "Vienna", "Madrid")
TWICE = ("Toy Story", "toy story")  # the encoder knows no capitals
PEOPLE, RATINGS = 50, 10_000


def write_ratings(folder: Path) -> int:
    """Ratings that titles say much of, in MovieLens' files, where the demonstration looks for them first.

    Returns:
        How many films there are.
    """
    random = np.random.default_rng(5)
    titles = [f"{kind} {place}" for kind in (*LIKED, *DISLIKED) for place in PLACES] + list(TWICE)
    films = [f"{film}\t{title}\t{1980 + film % 20}\tDrama" for film, title in enumerate(titles)]
    people = [f"{one}\t{20 + one % 40}\t{'MF'[one % 2]}\twriter\t0" for one in range(PEOPLE)]
    ratings = []
    for second in range(RATINGS):
        film = int(random.integers(len(titles)))
        is_liked = random.random() < (0.15 if titles[film].startswith(DISLIKED) else 0.85)
        ratings.append(f"{random.integers(PEOPLE)}\t{film}\t{5 if is_liked else 1}\t{second}")
    data = folder / "recbole/dataset_example/ml-100k"
    data.mkdir(parents=True)
    for kind, lines in (("item", films), ("user", people), ("inter", ratings)):
        (data / f"ml-100k.{kind}").write_text("\n".join(["a header", *lines, ""]))
    return len(titles)


def run(folder: Path) -> str:
    """Run the demonstration; what it says.

    Its servers end with it, also where it crashes: nobody waits for them, or for what they would print.
    """
    output = folder / "output"
    with output.open("w") as into:
        demo = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "demo.archive"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            stdout=into,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = demo.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(demo.pid, signal.SIGKILL)
            demo.wait()
    said = output.read_text()
    assert ended == 0, said
    return said


@pytest.mark.rest
def test_films_are_asked_for_embedded_found_compared_and_learnt_by_their_titles(tmp_path: Path) -> None:
    count = write_ratings(tmp_path / ".data/ratings")
    said = run(tmp_path)
    found = re.findall(rf"^(\w[\w ]*?) +1 +{count} +(\d+)% ", said, re.MULTILINE)
    assert found[0] == ("nothing is embedded", "0")
    assert found[-1] == ("all are embedded", "100")
    shares = [int(share) for _, share in found]
    assert shares == sorted(shares)
    assert "queue: 0 keys wait; dead letters: 0" in said
    assert re.search(rf"nearest to Toy Story of {count}\n +cosine +key\n +1\.0000 +toy story\n", said)
    assert re.search(
        r"^ +1 groups?; 1 keys? beyond one of each group, 1 of them with an equal vector", said, re.M
    )
    area = {name: float(auc) for name, auc in re.findall(r"^(\w[\w, ]*?)  +[\d.]+ +([\d.]+)$", said, re.M)}
    assert area["people, titles"] > 0.7 > area["people"]
    assert area["people, titles"] > area["people, half of the titles"] > area["people"]
    for name in ("archive-titles.png", "archive-unseen.png"):
        assert (tmp_path / ".data" / name).read_bytes().startswith(b"\x89PNG")
