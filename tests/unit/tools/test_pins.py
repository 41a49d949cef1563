"""What a constraints file has of an environment, and that the project's files are such."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.pins import pins

ROOT = Path(__file__).resolve().parents[3]


def test_only_names_and_versions_are_kept_in_order() -> None:
    frozen = ["-e /work/headrace", "b==2.0", "c @ file:///tmp/c.whl", "A==1.0"]
    assert pins(frozen) == ["A==1.0", "b==2.0"]


@pytest.mark.parametrize("name", ["constraints-3.11.txt", "constraints-clients-3.11.txt"])
def test_constraints_are_bare_names_and_versions(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text("utf-8").splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


def test_the_clients_keep_protobuf_below_7() -> None:
    text = (ROOT / "constraints-clients-3.11.txt").read_text("utf-8")
    found = re.search(r"^protobuf==(\d+)", text, re.M)
    assert found is not None
    assert int(found[1]) < 7
