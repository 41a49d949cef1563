"""What nobody expected of a model's directory: clients hear that it is so, and the log has why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lifecycle.watch import Watch, put


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    put(tmp_path / "ctr" / "2")
    put(tmp_path / "rank" / "7")
    watch = Watch(tmp_path)
    watch.start()
    return watch


@pytest.mark.parametrize("step", ["_list_model", "deduce_model"])
def test_an_unexpected_error_of_a_model_is_in_full_in_the_log_only(
    watch: Watch, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no table in /srv/secret/models")

    module = "model_listing" if step == "_list_model" else "desired_state"
    with monkeypatch.context() as patched:
        patched.setattr(f"headrace.lifecycle.{module}.{step}", broken)
        watch.look(2)
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert watch.problem("ctr").startswith("its directory cannot be ")
    assert watch.problem("ctr").endswith("; the server's log says more")
    assert caplog.text.count("ctr: its directory cannot be ") == 1
    assert caplog.text.count("says more: ValueError: no table in /srv/secret/models") == 2
    watch.look()
    assert watch.problem("ctr") == ""
