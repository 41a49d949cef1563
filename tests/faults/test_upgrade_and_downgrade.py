"""Releases take turns, on one port and over one directory; none loses a request or misreads what is there.

The earlier release is the oldest commit of this repository that can hand its ports over to today's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.versions.layout import CONTROL_FILE, MANIFEST_FILE
from headrace.versions.manifest import publish
from headrace.versions.pins_and_holds import hold, pin, unpin
from tests.earlier_files import EARLIER, unpack
from tests.earlier_release import EarlierRelease, oldest_that_hands_over
from tests.faults.still_serves import MODEL, does_it_still_serve
from tests.faults.strict_callers import Callers, grpc_unary, http1
from tests.faults.test_bad_versions import state
from tests.model_directories import affine, write
from tests.running_server import RunningServer

NEWER = "format 2 is newer than 1; update headrace"
CALLERS = 8
PAUSE_SECONDS = 0.01
ANSWERS = 300
"""That callers of each protocol have had of each server, before the next one takes its place."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> EarlierRelease:
    return EarlierRelease(tmp_path_factory.mktemp("earlier"), oldest_that_hands_over())


@pytest.mark.rest
def test_no_request_is_lost_on_the_way_to_another_release_and_back(
    earlier: EarlierRelease, models: Path, tmp_path: Path
) -> None:
    place = tmp_path / "run" / "handover"
    place.parent.mkdir(mode=0o700)
    options = ("--handover", str(place), "--drain-lead-seconds", "0.3")
    with ExitStack() as running:
        server = first = running.enter_context(
            RunningServer(models, *options, environment=earlier.environment)
        )
        callers = [Callers(kind, first, CALLERS, PAUSE_SECONDS) for kind in (http1, grpc_unary)]
        tallies = [running.enter_context(one) for one in callers]

        def answered(more: int) -> None:
            wanted = [tally.answered + more for tally in tallies]
            server.wait_for(
                lambda: all(one.answered >= n for one, n in zip(tallies, wanted, strict=True)), "the load"
            )

        for environment in (None, earlier.environment):
            answered(ANSWERS)
            before, server = (
                server,
                running.enter_context(RunningServer(models, *options, environment=environment)),
            )
            assert before.wait_until_ended() == 0
            assert (server.http_port, server.grpc_port) == (first.http_port, first.grpc_port)
        answered(ANSWERS)
        for one in callers:
            one.end()
    assert [(tally.lost, tally.refused) for tally in tallies] == [([], 0)] * 2


PUBLISH = """
import pathlib, sys
from headrace.versions.manifest import publish
publish(*map(pathlib.Path, sys.argv[1:]))
"""


def test_two_releases_serve_one_directory_and_follow_each_others_publications_and_decisions(
    earlier: EarlierRelease, models: Path, tmp_path: Path
) -> None:
    """Both all the time; now one writes, now the other."""
    model = models / "turns"

    def content(version: int) -> Path:
        folder = tmp_path / f"content-{version}"
        folder.mkdir()
        (folder / "model.onnx").write_bytes(affine(1.0, 10.0 * version))
        return folder

    def earlier_verb(*words: str) -> Callable[[], object]:
        return lambda: earlier.run("-m", "headrace", *words)

    publish(content(1), model)
    steps: list[tuple[Callable[[], object], int]] = [
        (lambda: None, 1),
        (lambda: earlier.run("-c", PUBLISH, str(content(2)), str(model)), 2),
        (lambda: pin(model, 1, why="today's"), 1),
        (lambda: publish(content(3), model), 1),
        (earlier_verb("rollback", str(model / "2")), 2),
        (lambda: hold(model, 2, "today", why="to go back to"), 2),
        (earlier_verb("rollback", str(model), "--release"), 3),
    ]
    with RunningServer(models) as today, RunningServer(models, environment=earlier.environment) as before:
        for number, (step, expected) in enumerate(steps):
            step()
            for server in (today, before):

                def answers(server: RunningServer = server, expected: int = expected) -> bool:
                    said = server.post("/v1/models/turns:predict", {"instances": [1.0]})
                    return said == (200, {"predictions": [1.0 + 10.0 * expected]})

                server.wait_for(answers, f"step {number}")
        record = model / CONTROL_FILE
        draft = record.with_name("draft")
        draft.write_text('{"format": 2, "pinned": {"to": 2}}')
        draft.rename(record)
        publish_newer(model, 4)
        assert NEWER in earlier.run("-m", "headrace", "rollback", str(model / "1"), fails=True)
        for server in (today, before):
            server.wait_for(
                lambda server=server: NEWER in state(server, "turns", 4), "the version to be refused"
            )
            server.wait_for(
                lambda server=server: any(CONTROL_FILE in line and NEWER in line for line in server.errors),
                "a word about the record",
            )
            assert server.post("/v1/models/turns:predict", {"instances": [1.0]})[1] == {"predictions": [31.0]}
            does_it_still_serve(server)


def predictions(server: RunningServer, inputs: dict[str, list[object]]) -> list[float]:
    status, body = server.post("/v1/models/clicks:predict", {"inputs": inputs})
    assert status == 200, body
    found = body["outputs"]
    assert isinstance(found, list)
    return [one[0] if isinstance(one, list) else one for one in found]


def publish_newer(model: Path, number: int) -> None:
    """Publish a version that a newer headrace has written."""
    elsewhere = model.parent.parent / "elsewhere"
    version = publish(lambda path: (path / "model.onnx").write_bytes(affine(1.0, 9.0)), elsewhere)
    (version / MANIFEST_FILE).write_text('{"format": 2, "content": [{"name": "model.onnx"}]}')
    version.rename(model / str(number))


@pytest.mark.parametrize("name", EARLIER)
def test_versions_of_an_earlier_headrace_are_served_beside_those_of_today(name: str, tmp_path: Path) -> None:
    expected = unpack(name, tmp_path)
    models = tmp_path / "models"
    write(models, MODEL, 1, affine(1.0, 1.0))
    with RunningServer(models) as server:
        pinned = predictions(server, expected["inputs"])
        assert pinned == pytest.approx(expected["predictions"]["1"], abs=2e-6)
        unpin(models / "clicks", why="upgraded")
        server.wait_for(lambda: "AVAILABLE" in state(server, "clicks", 2), "the patch")
        patched = predictions(server, expected["inputs"])
        assert patched == pytest.approx(expected["predictions"]["2"], abs=2e-6)
        publish_newer(models / "clicks", 3)
        server.wait_for(lambda: NEWER in state(server, "clicks", 3), "the newer version to be refused")
        assert predictions(server, expected["inputs"]) == patched
        publish(models / "clicks/1", models / "clicks", 4)  # published anew by today's
        server.wait_for(lambda: "AVAILABLE" in state(server, "clicks", 4), "today's version")
        assert predictions(server, expected["inputs"]) == pinned
        does_it_still_serve(server)
    assert server.count_in_log(NEWER) == 1, "it was tried again"


def test_a_newer_control_record_leaves_in_force_what_was_decided_before(tmp_path: Path) -> None:
    expected = unpack(EARLIER[-1], tmp_path)
    models, record = tmp_path / "models", tmp_path / "models/clicks" / CONTROL_FILE
    write(models, MODEL, 1, affine(1.0, 1.0))
    before = record.read_text()
    with RunningServer(models) as server:
        draft = record.with_name("draft")
        draft.write_text('{"format": 2, "pinned": {"to": 2}}')
        draft.rename(record)
        server.wait_for(lambda: server.count_in_log(NEWER) > 0, "a word about the record")
        pinned = predictions(server, expected["inputs"])
        assert pinned == pytest.approx(expected["predictions"]["1"], abs=2e-6)
        changed = json.loads(before) | {"pin": None}
        draft.write_text(json.dumps(changed))
        draft.rename(record)
        server.wait_for(lambda: "AVAILABLE" in state(server, "clicks", 2), "what was decided now")
        does_it_still_serve(server)
