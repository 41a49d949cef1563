"""The Source: from directories to the wanted set; what is lost, half-written or wrong unloads nothing."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from headrace.config import ServerConfig, parse_server_config
from headrace.versions.manifest import publish
from headrace.versions.pins_and_holds import pin, unpin
from tests.unit.lifecycle.watch import Watch, put

# ---- What is there ----


def test_versions_on_disk_at_the_start_are_wanted_at_once(watch: Watch, root: Path) -> None:
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert watch.said[0]["ctr"].versions == {2: root / "ctr" / "2"}


def test_the_wanted_state_is_reported_only_when_it_changes(watch: Watch) -> None:
    watch.look(5)
    assert len(watch.said) == 1


def test_a_directory_of_numbers_is_one_model_named_after_it(root: Path) -> None:
    (root / "ctr" / "assets").mkdir()
    watch = Watch(root / "ctr")
    watch.start()
    assert watch.now == {"ctr": [2]}


def test_a_stray_number_beside_models_turns_nothing_round(
    watch: Watch, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(root / "9")
    watch.look(3)
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert "9: no version in it: expected directories named 1, 2" in caplog.text


def test_invalid_model_names_are_skipped_and_logged_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(root / "my model" / "1")
    watch = Watch(root)
    watch.start()
    watch.look(3)
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert caplog.text.count("my model: not a model's name") == 1


def test_unusable_names_are_reported_with_advice_until_they_are_fixed(tmp_path: Path, root: Path) -> None:
    put(root / "my model" / "1")
    put(root / "flat")
    (root / "empty").mkdir()
    (root / "empty" / "headrace.toml").write_text("")
    settings = (
        '[models.far]\npath = "far"\n[models.near.versions]\ncount = 2\n[models.ctr.versions]\ncount = 2'
    )
    watch = Watch(root, parse_server_config(settings, "server.toml", tmp_path))
    watch.start()
    assert {name: why.partition(":")[0] for name, why in watch.unusable.items()} == {
        "my model": "not a model's name",
        "flat": "no version in it",
        "empty": "no version in it",
        "near": "the server's settings name it, but it has no directory; create one, or set path in "
        "[models.near]",
    }
    assert watch.unusable["my model"].endswith("; rename its directory")
    assert watch.unusable["flat"].endswith(" into a subdirectory named 1")
    assert watch.problem("far").endswith("; correct the path in [models.far], or put the model there")
    (root / "flat" / "1").mkdir()
    (root / "flat" / "model.onnx").rename(root / "flat" / "1" / "model.onnx")
    (root / "my model").rename(root / "near")
    put(tmp_path / "far" / "3")
    watch.look(3)
    assert watch.now == {"ctr": [1, 2], "far": [3], "flat": [1], "near": [1], "rank": [7]}
    assert list(watch.unusable) == ["empty"]


def test_unusable_names_stay_reported_while_the_served_directory_is_lost(root: Path) -> None:
    (root / "empty").mkdir()
    watch = Watch(root)
    watch.start()
    root.rename(root.with_name("lost"))
    watch.look(2)
    assert list(watch.unusable) == ["empty"]
    assert "cannot be listed" in watch.problem("ctr")


def test_hidden_directories_and_files_are_not_looked_at(
    watch: Watch, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(root / ".git" / "1")
    put(root / "ctr" / ".publishing-1-ab")
    (root / "notes.txt").write_text("x")
    watch.look(3)
    assert len(watch.said) == 1
    assert caplog.text == ""


def test_models_may_lie_elsewhere(tmp_path: Path, root: Path) -> None:
    put(tmp_path / "far" / "3")
    config = parse_server_config('[models.near]\npath = "far"', "server.toml", tmp_path)
    for served in (root, None):
        watch = Watch(served, config)
        watch.start()
        assert watch.now["near"] == [3]


def test_links_are_followed_and_one_that_leads_elsewhere_is_a_change(tmp_path: Path, root: Path) -> None:
    put(tmp_path / "far" / "3")
    for release in ("release-a", "release-b"):
        put(tmp_path / release)
    link = root / "ctr" / "5"
    os.symlink(tmp_path / "far", root / "linked")
    os.symlink(tmp_path / "release-a", link)
    watch = Watch(root)
    watch.start()
    assert watch.now == {"ctr": [5], "linked": [3], "rank": [7]}
    told = watch.said[-1]["ctr"].fingerprints
    link.unlink()
    os.symlink(tmp_path / "release-b", link)
    watch.look(2)
    assert watch.said[-1]["ctr"].fingerprints != told


def test_without_polling_it_scans_once(root: Path) -> None:
    watch = Watch(root, ServerConfig(poll_seconds=0.0))
    watch.start()
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert watch.clock.timers == 0


def test_after_stop_it_scans_no_more(watch: Watch, root: Path) -> None:
    put(root / "ctr" / "3")
    watch.source.stop()
    watch.look(3)
    assert len(watch.said) == 1
    assert watch.clock.timers == 0


# ---- What appears ----


def test_a_version_is_wanted_when_it_has_stopped_changing(watch: Watch, root: Path) -> None:
    half = put(root / "ctr" / "3", "we")
    for content in ("weig", "weight", "weights"):
        watch.look()
        assert watch.now["ctr"] == [2]
        put(half, content)
    watch.look()
    assert watch.now["ctr"] == [2]
    watch.look()
    assert watch.now["ctr"] == [3]


def test_a_published_version_is_wanted_at_the_next_look(watch: Watch, root: Path) -> None:
    publish(root / "ctr" / "1", root / "ctr")
    watch.look()
    assert watch.now["ctr"] == [3]


def test_a_model_that_appears_is_wanted_when_it_has_stopped_changing(watch: Watch, root: Path) -> None:
    put(root / "new" / "1")
    watch.look()
    assert "new" not in watch.now
    watch.look()
    assert watch.now["new"] == [1]


def test_replacing_the_only_version_never_unloads_it(watch: Watch, root: Path) -> None:
    shutil.rmtree(root / "rank" / "7")
    put(root / "rank" / "8")
    watch.look()
    assert watch.now["rank"] == [7]
    assert watch.problem("rank") == "its versions are still being written"
    watch.look()
    assert watch.now["rank"] == [8]
    assert watch.problem("rank") == ""


def test_a_change_in_a_wanted_version_is_reported_once_it_has_settled(watch: Watch, root: Path) -> None:
    told = watch.said[-1]["ctr"].fingerprints[2]
    put(root / "ctr" / "2", "other")
    watch.look()
    assert watch.said[-1]["ctr"].fingerprints[2] == told
    watch.look()
    assert watch.said[-1]["ctr"].fingerprints[2] != told
    watch.look(3)
    assert len(watch.said) == 2


# ---- What is lost ----


def test_a_version_that_is_removed_is_not_wanted_any_more(watch: Watch, root: Path) -> None:
    shutil.rmtree(root / "ctr" / "2")
    watch.look()
    assert watch.now["ctr"] == [1]


def test_a_model_that_is_removed_is_not_wanted_any_more(watch: Watch, root: Path) -> None:
    shutil.rmtree(root / "ctr")
    watch.look()
    assert watch.now == {"rank": [7]}


def test_a_model_directory_that_lists_nothing_keeps_what_it_has(watch: Watch, root: Path) -> None:
    for number in "12":
        shutil.rmtree(root / "ctr" / number)
    watch.look()
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert watch.problem("ctr") == "no version is left in its directory; loaded versions keep serving"


def test_a_served_directory_that_lists_nothing_keeps_everything(watch: Watch, root: Path) -> None:
    for name in ("ctr", "rank"):
        shutil.rmtree(root / name)
    watch.look()
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert watch.problem("ctr") == "the served directory is empty; loaded versions keep serving"


def test_a_served_directory_that_vanishes_and_comes_back_changes_nothing(
    watch: Watch, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = watch.said[-1]
    root.rename(root.with_name("away"))
    watch.look(3)
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert "cannot be listed" in watch.problem("ctr")
    assert caplog.text.count("ctr: the model directory cannot be listed") == 1
    root.with_name("away").rename(root)
    watch.look()
    assert watch.said[-1] == first


def test_a_served_directory_that_is_not_there_yet_is_waited_for(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(root.with_name("later"))
    watch.start()
    watch.look(2)
    assert watch.said == []
    assert caplog.text.count("cannot be listed") == 1
    root.rename(root.with_name("later"))
    watch.look()
    assert watch.now == {"ctr": [2], "rank": [7]}


def test_a_model_elsewhere_that_vanishes_keeps_what_it_has(tmp_path: Path) -> None:
    put(tmp_path / "far" / "3")
    watch = Watch(None, parse_server_config('[models.m]\npath = "far"', "server.toml", tmp_path))
    watch.start()
    shutil.rmtree(tmp_path / "far")
    watch.look()
    assert watch.now == {"m": [3]}
    assert "cannot be listed" in watch.problem("m")


def test_a_look_that_breaks_is_followed_by_the_next_one(
    watch: Watch, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patched:
        patched.setattr("headrace.lifecycle.source.list_models", broken)
        watch.look()
    assert "out of luck" in caplog.text
    shutil.rmtree(root / "ctr" / "2")
    watch.look()
    assert watch.now["ctr"] == [1]


# ---- Settings, pins, labels ----


def test_settings_are_picked_up_while_serving(watch: Watch, root: Path) -> None:
    (root / "ctr" / "headrace.toml").write_text("[versions]\ncount = 2\nlabels = { stable = 1 }")
    watch.look()
    assert watch.now["ctr"] == [1, 2]
    assert watch.said[-1]["ctr"].labels == {"stable": 1}
    (root / "ctr" / "headrace.toml").unlink()
    watch.look()
    assert watch.now["ctr"] == [2]


def test_broken_settings_keep_the_last_good_ones_with_the_error_shown(watch: Watch, root: Path) -> None:
    file = root / "ctr" / "headrace.toml"
    file.write_text("[batching]\ninstances = 3")
    watch.look()
    file.write_text("[batching]\ninstance = 4")
    watch.look(2)
    assert watch.said[-1]["ctr"].config.batching.instances == 3
    assert watch.problem("ctr").startswith("headrace.toml: batching.instance: unknown setting; did you mean")
    publish(root / "ctr" / "1", root / "ctr")
    watch.look()
    assert watch.now["ctr"] == [3]
    file.write_text("[batching]\ninstances = 4")
    watch.look()
    assert watch.said[-1]["ctr"].config.batching.instances == 4
    assert watch.problem("ctr") == ""


def test_settings_that_are_broken_from_the_start_serve_nothing_of_that_model(root: Path) -> None:
    (root / "ctr" / "headrace.toml").write_bytes(b"\xff")
    watch = Watch(root)
    watch.start()
    assert watch.now == {"ctr": [], "rank": [7]}
    assert watch.problem("ctr")
    (root / "ctr" / "headrace.toml").unlink()
    watch.look()
    assert watch.now["ctr"] == [2]


def test_a_model_that_names_itself_as_its_default_is_reported_when_its_settings_are_read(
    watch: Watch, root: Path
) -> None:
    (root / "ctr" / "headrace.toml").write_text('[versions]\ncount = 2\n[default]\nmodel = "ctr"')
    watch.look()
    assert watch.now["ctr"] == [2], "what was set before stays"
    said = "headrace.toml: default.model: expected the name of another model, got 'ctr'"
    assert watch.problem("ctr") == said


def test_a_missing_default_model_is_reported_until_it_exists(
    watch: Watch, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "ctr" / "headrace.toml").write_text('[default]\nmodel = "small"')
    watch.look()
    assert watch.now["ctr"] == [2]
    assert watch.problem("ctr").startswith("there is no model 'small' for its default answers")
    assert "ctr: there is no model 'small'" in caplog.text
    publish(root / "rank" / "7", root / "small", 1)
    with caplog.at_level(logging.INFO):
        watch.look()
    assert watch.problem("ctr") == ""
    assert "ctr: resolved: there is no model 'small'" in caplog.text


def test_a_policy_that_names_only_missing_versions_keeps_what_is_there(watch: Watch, root: Path) -> None:
    (root / "ctr" / "headrace.toml").write_text('[versions]\npolicy = "specific"\nnumbers = [8, 9]')
    watch.look()
    assert watch.now["ctr"] == [2]
    assert watch.problem("ctr") == "none of the versions [8, 9] exists"


def test_a_pin_goes_back_and_unpinning_goes_forward_again(watch: Watch, root: Path) -> None:
    pin(root / "ctr", 1)
    watch.look()
    assert watch.now["ctr"] == [1]
    publish(root / "ctr" / "1", root / "ctr")
    watch.look(2)
    assert watch.now["ctr"] == [1]
    unpin(root / "ctr")
    watch.look()
    assert watch.now["ctr"] == [3]


def test_a_pin_takes_labels_above_it_away(root: Path) -> None:
    (root / "ctr" / "headrace.toml").write_text("[versions]\nlabels = { stable = 1, canary = 2 }")
    pin(root / "ctr", 1)
    watch = Watch(root)
    watch.start()
    assert watch.said[-1]["ctr"].labels == {"stable": 1}


def test_a_pin_to_a_version_that_is_not_there_keeps_what_is_there(watch: Watch, root: Path) -> None:
    (root / "ctr" / "headrace.pin").write_text("5\n")
    watch.look()
    assert watch.now["ctr"] == [2]
    assert watch.problem("ctr") == "it is pinned to version 5, which does not exist"


def test_at_the_start_a_pin_to_a_missing_version_still_hides_what_is_above_it(root: Path) -> None:
    put(root / "ctr" / "6")
    (root / "ctr" / "headrace.pin").write_text("5\n")
    watch = Watch(root)
    watch.start()
    assert watch.now["ctr"] == [2]
    assert watch.problem("ctr") == "it is pinned to version 5, which does not exist"


@pytest.mark.parametrize("name", ["headrace.pin", "headrace-control.json"])
def test_the_last_valid_control_record_stays_in_force_while_it_is_unreadable(
    watch: Watch, root: Path, name: str
) -> None:
    (root / "ctr" / name).write_text("previous")
    put(root / "ctr" / "3")
    watch.look(2)
    assert watch.now == {"ctr": [3], "rank": [7]}, "there was no pin, and new versions come as ever"
    assert name in watch.problem("ctr")
    assert not watch.problem("rank")
    (root / "ctr" / name).unlink()
    pin(root / "ctr", 1)
    watch.look()
    assert watch.now["ctr"] == [1]
    (root / "ctr" / name).write_text("previous")
    put(root / "ctr" / "4")
    watch.look(3)
    assert watch.now["ctr"] == [1], "the pin stays"
    assert name in watch.problem("ctr")


@pytest.mark.parametrize("name", ["headrace.pin", "headrace-control.json"])
def test_at_the_start_a_model_with_an_unreadable_control_record_is_not_served(root: Path, name: str) -> None:
    (root / "ctr" / name).write_text("previous")
    watch = Watch(root)
    watch.start()
    assert watch.now == {"ctr": [], "rank": [7]}
    (root / "ctr" / name).unlink()
    watch.look()
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert not watch.problem("ctr")


def test_a_record_that_is_lost_loses_no_pin(watch: Watch, root: Path) -> None:
    pin(root / "ctr", 1)
    watch.look()
    record = root / "ctr" / "headrace-control.json"
    record.rename(root / "ctr" / "aside")
    watch.look(2)
    assert watch.now["ctr"] == [1]
    assert "headrace-control.json is missing; its pin to version 1 stays in force" in watch.problem("ctr")
    pin(root / "ctr", 1)
    unpin(root / "ctr")
    watch.look()
    assert watch.now["ctr"] == [2]
    assert not watch.problem("ctr")


def test_a_lost_record_without_a_pin_is_no_loss(watch: Watch, root: Path) -> None:
    pin(root / "ctr", 1)
    unpin(root / "ctr")
    watch.look()
    (root / "ctr" / "headrace-control.json").unlink()
    watch.look()
    assert not watch.problem("ctr")


def test_another_version_under_the_number_that_was_pinned_is_not_served(watch: Watch, root: Path) -> None:
    for number in (3, 4):
        publish(root / "ctr" / "1", root / "ctr", number)
    watch.look()
    pin(root / "ctr", 3)
    watch.look()
    assert watch.now["ctr"] == [3]
    shutil.rmtree(root / "ctr" / "3")
    publish(root / "ctr" / "2", root / "ctr", 3)
    watch.look(2)
    assert "had another manifest" in watch.problem("ctr")
    assert watch.now["ctr"] == [3], "what is loaded stays"
    anew = Watch(root)
    anew.start()
    assert anew.now["ctr"] == [2]


def test_the_servers_settings_win_over_the_models_own(root: Path, tmp_path: Path) -> None:
    (root / "ctr" / "headrace.toml").write_text("[batching]\ninstances = 3\nmax_batch_rows = 8")
    watch = Watch(root, parse_server_config("[models.ctr.batching]\ninstances = 1", "server.toml", tmp_path))
    watch.start()
    batching = watch.said[-1]["ctr"].config.batching
    assert (batching.instances, batching.max_batch_rows) == (1, 8)


def test_a_resolved_problem_is_logged(watch: Watch, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "ctr" / "headrace.pin").write_text("5\n")
    watch.look()
    unpin(root / "ctr")
    with caplog.at_level(logging.INFO):
        watch.look()
    assert "ctr: resolved: it is pinned to version 5" in caplog.text
