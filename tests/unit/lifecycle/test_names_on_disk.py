"""What the Source makes of names as they are on disk: links, dot files, and names like versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lifecycle.watch import Watch, put


def test_a_link_keeps_its_own_name_while_it_leads_elsewhere(root: Path) -> None:
    put(root.with_name("releases") / "aaa" / "1")
    put(root.with_name("releases") / "bbb" / "2")
    link = root.with_name("shop")
    link.symlink_to("releases/aaa")
    watch = Watch(link)
    watch.start()
    assert watch.now == {"shop": [1]}
    new = root.with_name("new")
    new.symlink_to("releases/bbb")
    new.rename(link)
    watch.look(3)
    assert watch.now == {"shop": [2]}


def test_names_that_only_look_like_versions_are_reported_with_advice(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("dotted/0.1", "v/v1", f"huge/{2**64}", "ctr/2.0", "ctr/assets", "rank/.9"):
        put(root / name)
    watch = Watch(root)
    watch.start()
    watch.look(3)
    for name, got in (("dotted", "0.1"), ("v", "v1"), ("huge", str(2**64))):
        assert f"got {got}: versions are whole numbers" in watch.unusable[name]
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert caplog.text.count("ctr/2.0: it is ignored: versions are whole numbers") == 1
    assert "assets" not in caplog.text
    assert ".9" not in caplog.text


def test_dot_files_change_nothing(watch: Watch, root: Path) -> None:
    watch.look(3)
    before = len(watch.said)
    for name in (".DS_Store", "._model.onnx"):
        (root / "ctr" / "2" / name).write_bytes(b"of a file manager")
        (root / "ctr" / name).write_bytes(b"of a file manager")
        (root / name).write_bytes(b"of a file manager")
    watch.look(5)
    assert len(watch.said) == before
