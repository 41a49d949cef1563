"""The loop publishes, saves and reports when it should, and ends well whatever happens."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import ConfigError, FailedPrecondition, StreamError
from headrace.base.tensors import Array
from headrace.evaluation.progressive_validation import Window, Windows
from headrace.stream.block import Block
from headrace.training.releasing.publishing import Publication, Training
from headrace.training.reporting.progress import JsonReport, Observer, Pace, Progress
from headrace.training.running.checkpoint import load_checkpoint
from headrace.training.running.learner import Learner, Pending
from headrace.training.running.loop import Every
from headrace.training.running.trainer import RunPlan, Trainer
from tests.unit.training.running.small_models import DivergingModel, RateModel, make_block, make_blocks


class Rows:
    """Blocks, and what happens after them."""

    def __init__(self, blocks: Sequence[Block], then: Callable[[], None] | None = None) -> None:
        self._blocks, self._then = blocks, then
        self.idle_seconds = 0.0
        self.stream_bytes = 0

    def wait(self, seconds: float) -> bool:
        raise AssertionError(f"nothing is due at a time, but the loop waits for {seconds} s")

    def __iter__(self) -> Iterator[Block]:
        for block in self._blocks:
            self.stream_bytes += 10 * len(block)
            yield block
        if self._then is not None:
            self._then()


class Versions:
    """Publishes nowhere, and remembers what."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.published: list[Training] = []
        self._asked = 0
        self._failing = failing

    def __call__(self, training: Training) -> Callable[[], Publication]:
        self._asked += 1
        number = self._asked

        def write() -> Publication:
            if number in self._failing:
                raise FailedPrecondition("the disk is full")
            self.published.append(training)
            return Publication(len(self.published), Path("nowhere"), None, 1, 0.0)

        return write


class Listener:
    def __init__(self) -> None:
        self.windows: list[tuple[int, Pace]] = []
        self.versions: list[tuple[int, int]] = []
        self.failures: list[str] = []
        self.progress = Progress()

    def moved(self, progress: Progress) -> None:
        self.progress = progress

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        self.windows.append((window.last_row, pace))

    def published(self, publication: Publication, rows: int) -> None:
        self.versions.append((publication.version, rows))

    def failed(self, what: str) -> None:
        self.failures.append(what)


def trainer(
    plan: RunPlan, *, listener: Observer | None = None, model: RateModel | None = None, delay: float = 0.0
) -> Trainer:
    pending = Pending(delay) if delay else None
    learner = Learner(model or RateModel(), Windows(100), pending)
    return Trainer(learner, plan, [listener] if listener else [])


def plan(**settings: object) -> RunPlan:
    return RunPlan(identity={"model": "rates"}, **settings)  # type: ignore[arg-type]


def test_versions_appear_every_so_many_rows_and_at_the_end() -> None:
    versions, listener = Versions(), Listener()
    one = trainer(plan(release=versions, publish_every=Every(rows=100)), listener=listener)
    result = one.run(Rows(make_blocks(350, 40)))
    assert [training.rows for training in versions.published] == [120, 200, 320, 350]
    assert listener.versions == [(1, 120), (2, 200), (3, 320), (4, 350)]
    assert [row for row, _ in listener.windows] == [100, 200, 300, 350]
    assert versions.published[-1].stream_bytes == 3500
    assert versions.published[-1].newest_timestamp == 349_000_000
    assert versions.published[-1].metrics["rows"] == 100
    assert (result.exit_code, result.error) == (0, None)
    assert result.summary["rows"] == 350
    assert result.summary["versions"] == [1, 2, 3, 4]
    assert result.summary["stopped"] == "end"


class SilentRows(Rows):
    """A block, and a silence until something has happened, by a clock of its own."""

    def __init__(self, seconds: float, until: Callable[[], bool], then: Callable[[], None]) -> None:
        super().__init__([make_block(40)], then)
        self.clock = 0.0
        self._seconds, self._until = seconds, until

    def wait(self, seconds: float) -> bool:
        self.clock += seconds
        return self._until()

    def __iter__(self) -> Iterator[Block]:
        self.clock = self._seconds  # the first row took so long
        return super().__iter__()


def silent_trainer(plan: RunPlan, rows: SilentRows, listener: Listener) -> Trainer:
    learner = Learner(RateModel(), Windows(100), None)
    return Trainer(learner, plan, [listener], now=lambda: rows.clock)


@pytest.mark.parametrize("seconds", [10.0, 60.0], ids=["in the silence", "right before it"])
def test_rows_before_a_silence_are_published_in_time(seconds: float) -> None:
    versions, listener = Versions(), Listener()
    told: list[tuple[int, int]] = []
    rows = SilentRows(seconds, lambda: bool(listener.versions), lambda: told.extend(listener.versions))
    every = plan(release=versions, publish_every=Every(seconds=60.0))
    assert silent_trainer(every, rows, listener).run(rows).exit_code == 0
    assert told == [(1, 40)]
    assert [training.rows for training in versions.published] == [40]
    assert rows.clock >= 60.0


def test_rows_before_a_silence_are_saved_in_time(tmp_path: Path) -> None:
    saved: list[bool] = []
    rows = SilentRows(10.0, lambda: False, lambda: saved.append(load_checkpoint(tmp_path) is not None))
    every = plan(checkpoint=tmp_path, checkpoint_every=Every(seconds=60.0))
    assert silent_trainer(every, rows, Listener()).run(rows).exit_code == 0
    assert (saved, rows.clock) == ([True], 60.0)


def test_a_time_without_an_action_is_waited_for_once() -> None:
    rows = SilentRows(10.0, lambda: False, lambda: None)
    timed = plan(publish_every=Every(seconds=60.0), checkpoint_every=Every(seconds=90.0))
    assert silent_trainer(timed, rows, Listener()).run(rows).exit_code == 0
    assert rows.clock == 90.0


def test_nothing_new_is_not_published_twice() -> None:
    versions = Versions()
    trainer(plan(release=versions, publish_every=Every(rows=100))).run(Rows(make_blocks(200, 50)))
    assert [training.rows for training in versions.published] == [100, 200]


def test_a_stream_without_rows_publishes_nothing(tmp_path: Path) -> None:
    versions = Versions()
    result = trainer(plan(release=versions, checkpoint=tmp_path / "saved")).run(Rows([]))
    assert versions.published == []
    assert not (tmp_path / "saved").exists()
    assert (result.summary["rows"], result.summary["logloss"], result.exit_code) == (0, None, 0)


def test_a_run_stops_at_the_row_it_is_told_to() -> None:
    result = trainer(plan(most_rows=130)).run(Rows(make_blocks(350, 40)))
    assert (result.summary["rows"], result.summary["stopped"]) == (130, "rows")


def test_a_stream_error_keeps_what_was_learnt_before_it(tmp_path: Path) -> None:
    def broken() -> None:
        raise StreamError("it is cut", row=120)

    versions = Versions()
    one = trainer(plan(release=versions, checkpoint=tmp_path))
    result = one.run(Rows(make_blocks(120, 40), broken))
    assert (result.exit_code, result.error) == (1, "stream, row 120: it is cut")
    assert result.summary["stopped"] == "error"
    assert result.summary["error"] == result.error
    assert [training.rows for training in versions.published] == [120]
    saved = load_checkpoint(tmp_path)
    assert saved is not None
    assert saved.meta["position"] == {"rows": 120, "newest_timestamp": 119_000_000}


@pytest.mark.parametrize(
    ("number", "code", "stopped"),
    [(signal.SIGINT, 130, "interrupt"), (signal.SIGTERM, 143, "terminate")],
)
def test_a_signal_ends_the_run_and_keeps_what_was_learnt(
    number: signal.Signals, code: int, stopped: str, tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    versions = Versions()
    one = trainer(plan(release=versions, checkpoint=tmp_path))
    result = one.run(Rows(make_blocks(120, 40), lambda: os.kill(os.getpid(), number)))
    assert (result.exit_code, result.summary["stopped"], result.error) == (code, stopped, None)
    assert [training.rows for training in versions.published] == [120]
    assert load_checkpoint(tmp_path) is not None
    assert signal.getsignal(number) is before


def test_a_signal_while_a_block_is_learnt_lets_it_be_learnt_to_the_end() -> None:
    class Interrupting(RateModel):
        def learn(self, block: Block) -> object:  # type: ignore[override]
            os.kill(os.getpid(), signal.SIGINT)
            return super().learn(block)

    result = trainer(plan(), model=Interrupting()).run(Rows(make_blocks(120, 40)))
    assert (result.summary["rows"], result.summary["stopped"]) == (40, "interrupt")


def test_a_model_that_diverged_is_neither_published_nor_saved(tmp_path: Path) -> None:
    versions = Versions()
    one = trainer(
        plan(release=versions, publish_every=Every(rows=40), checkpoint=tmp_path / "saved"),
        model=DivergingModel(80),
    )
    result = one.run(Rows(make_blocks(400, 40)))
    assert [training.rows for training in versions.published] == [40, 80]
    assert not (tmp_path / "saved").exists()
    assert (result.exit_code, result.summary["stopped"]) == (1, "diverged")
    assert result.error is not None
    assert "diverged" in result.error


def test_a_model_that_diverges_by_the_labels_that_come_last_ends_the_run_as_any_other() -> None:
    class Late(RateModel):
        def learn(self, block: Block) -> Array:
            learnt = super().learn(block)
            return learnt if block.first_row < 80 else np.full_like(learnt, np.nan)

    versions = Versions()
    result = trainer(plan(release=versions), model=Late(), delay=55.0).run(Rows(make_blocks(100, 10)))
    assert (result.exit_code, result.summary["stopped"], versions.published) == (1, "diverged", [])


def test_a_version_that_cannot_be_written_is_said_and_tried_again() -> None:
    versions, listener = Versions(failing=[1]), Listener()
    one = trainer(plan(release=versions, publish_every=Every(rows=100)), listener=listener)
    result = one.run(Rows(make_blocks(200, 50)))
    assert listener.failures == ["not published: the disk is full"]
    assert [training.rows for training in versions.published] == [200]
    assert (result.exit_code, result.error) == (0, None)


def test_a_last_version_that_cannot_be_written_is_an_error() -> None:
    versions = Versions(failing=[2])
    one = trainer(plan(release=versions, publish_every=Every(rows=100)))
    result = one.run(Rows(make_blocks(150, 50)))
    assert (result.exit_code, result.error) == (1, "not published: the disk is full")
    assert result.summary["versions"] == [1]


def test_a_checkpoint_that_cannot_be_written_is_an_error_at_the_end(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    listener = Listener()
    one = trainer(plan(checkpoint=blocked, checkpoint_every=Every(rows=100)), listener=listener)
    result = one.run(Rows(make_blocks(150, 50)))
    assert len(listener.failures) == 2
    assert result.exit_code == 1
    assert result.error is not None
    assert result.error.startswith("not saved: ")


@pytest.mark.parametrize("delay", [0.0, 55.0])
def test_a_resumed_run_says_what_the_undisturbed_one_would_have_said(delay: float, tmp_path: Path) -> None:
    def untimed(summary: dict[str, object]) -> dict[str, object]:
        timed = ("seconds", "rows_per_second", "idle_share", "stream_bytes")
        return {name: value for name, value in summary.items() if name not in timed}

    def lines(output: io.StringIO) -> list[dict[str, object]]:
        return [untimed(json.loads(line)) for line in output.getvalue().splitlines()]

    outputs = [io.StringIO() for _ in range(3)]
    reports = [JsonReport(output) for output in outputs]
    every = {"publish_every": Every(rows=100), "checkpoint_every": Every(rows=90)}
    undisturbed = trainer(
        plan(release=Versions(), checkpoint=tmp_path / "a", **every), listener=reports[0], delay=delay
    )
    expected = undisturbed.run(Rows(make_blocks(600, 30)))

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    versions = Versions()
    both = plan(release=versions, checkpoint=tmp_path / "b", **every)
    first = trainer(both, listener=reports[1], delay=delay)
    with pytest.raises(Killed):
        first.run(Rows(make_blocks(330, 30), kill))
    saved = load_checkpoint(tmp_path / "b")
    assert saved is not None
    versions.published = versions.published[: len(saved.meta["trainer"]["versions"])]  # type: ignore[index]
    second = trainer(both, listener=reports[2], delay=delay)
    reports[2].resumed(second.resume(saved, continued=False))
    found = second.run(Rows(make_blocks(600, 30, first_row=270)))
    assert untimed(found.summary) == untimed(expected.summary)
    resumed = lines(outputs[2])
    before = [line for line in lines(outputs[1]) if line["window"] < resumed[0]["window"]]  # type: ignore[operator]
    assert before + resumed == lines(outputs[0])


def test_a_checkpoint_does_not_grow_with_each_version(tmp_path: Path) -> None:
    trainer(plan(checkpoint=tmp_path)).run(Rows([make_block(10)]))
    saved = load_checkpoint(tmp_path)
    assert saved is not None
    kept: dict[str, object] = dict(saved.meta["trainer"])  # type: ignore[call-overload]
    meta = {**saved.meta, "trainer": {**kept, "versions": list(range(100, 10_100))}}
    second = trainer(plan(checkpoint=tmp_path, release=Versions()))
    second.resume(replace(saved, meta=meta), continued=True)
    second.run(Rows([make_block(10, first_row=10)]))
    later = load_checkpoint(tmp_path)
    assert later is not None
    versions = later.meta["trainer"]["versions"]  # type: ignore[index]
    assert (len(versions), versions[0], versions[-2:]) == (10_000, 101, [10_099, 1])


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    trainer(plan(checkpoint=tmp_path)).run(Rows([make_block(10)]))
    saved = load_checkpoint(tmp_path)
    assert saved is not None
    other = trainer(RunPlan(identity={"model": "another"}, checkpoint=tmp_path))
    said = (
        "checkpoint: its model is not the one of this run: model is 'rates' in the checkpoint, "
        "and 'another' in this run"
    )
    with pytest.raises(ConfigError, match=said):
        other.resume(saved, continued=False)


def test_rows_that_wait_for_their_labels_are_not_counted_as_learnt() -> None:
    versions = Versions()
    one = trainer(plan(release=versions, publish_every=Every(rows=300)), delay=60.0)
    result = one.run(Rows(make_blocks(600, 30)))
    assert [training.rows for training in versions.published] == [210, 510, 600]
    assert result.summary["pending_rows"] == 0


class FailingModel(RateModel):
    """Has learnt half of a block when it fails."""

    def __init__(self, at_row: int, error: Exception) -> None:
        super().__init__()
        self._at_row, self._error = at_row, error

    def learn(self, block: Block) -> Array:
        if block.first_row == self._at_row:
            super().learn(block.part(0, len(block) // 2))
            raise self._error
        return super().learn(block)


@pytest.mark.parametrize("error", [MemoryError(), TypeError("a bug in a layer")], ids=["memory", "bug"])
def test_rows_that_cannot_be_learnt_end_the_run_and_the_checkpoint_says_what_it_may_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    versions = Versions()
    settings = {"checkpoint": tmp_path, "checkpoint_every": Every(rows=40), "release": versions}
    result = trainer(plan(**settings), model=FailingModel(120, error)).run(Rows(make_blocks(200, 40)))
    assert (result.exit_code, result.summary["stopped"], result.summary["rows"]) == (1, "error", 120)
    assert result.error is not None
    assert result.error.startswith(f"learning failed while taking rows 120 to 159: {type(error).__name__}")
    assert versions.published == []  # A model of half a block is nothing to serve.
    saved = load_checkpoint(tmp_path)
    assert saved is not None
    assert saved.number == 3  # What was whole is not covered by what is half.

    resumed = trainer(plan(checkpoint=tmp_path), model=FailingModel(160, error))
    resumed.resume(saved, continued=False)
    assert "may include some" not in caplog.text
    resumed.run(Rows(make_blocks(200, 40, 120)))
    half = load_checkpoint(tmp_path)
    assert half is not None
    trainer(plan()).resume(half, continued=False)
    assert "checkpoint 4 was saved after learning failed while taking rows 160 to 199" in caplog.text


def test_a_reader_that_fails_unexpectedly_keeps_what_was_learnt_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise MemoryError

    versions = Versions()
    settings = {"checkpoint": tmp_path, "release": versions}
    result = trainer(plan(**settings)).run(Rows(make_blocks(120, 40), broken))
    assert (result.exit_code, result.error, result.summary["rows"]) == (1, "MemoryError", 120)
    assert [training.rows for training in versions.published] == [120]
    saved = load_checkpoint(tmp_path)
    assert saved is not None
    resumed = trainer(plan(checkpoint=tmp_path))
    resumed.resume(saved, continued=False)
    assert "may include some" not in caplog.text
    whole = trainer(plan()).run(Rows(make_blocks(200, 40)))
    assert resumed.run(Rows(make_blocks(200, 40, 120))).summary["logloss"] == whole.summary["logloss"]


def test_a_publisher_that_fails_unexpectedly_ends_no_learning(tmp_path: Path) -> None:
    class Broken(Versions):
        def __call__(self, training: Training) -> Callable[[], Publication]:
            if training.rows == 80:
                raise MemoryError
            write = super().__call__(training)
            missing: list[Publication] = []

            def broken() -> Publication:
                return write() if training.rows > 120 else missing[0]

            return broken

    listener = Listener()
    settings = {"release": Broken(), "publish_every": Every(rows=40), "checkpoint": tmp_path}
    result = trainer(plan(**settings), listener=listener).run(Rows(make_blocks(160, 40)))
    assert (result.exit_code, result.summary["rows"]) == (0, 160)
    assert listener.failures == [
        "not published: IndexError: list index out of range",
        "not published: MemoryError",
        "not published: IndexError: list index out of range",
    ]
    assert listener.versions == [(1, 160)]
    assert load_checkpoint(tmp_path) is not None


def test_learning_that_waits_for_a_version_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A file system may hang for ever: then nothing is learnt or saved, which somebody must notice."""
    versions, deadline = Versions(), time.monotonic() + 20

    def slow(training: Training) -> Callable[[], Publication]:
        write = versions(training)

        def write_slowly() -> Publication:
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(0.001)
            return write()

        return write_slowly

    learner = Learner(RateModel(), Windows(100), None)
    result = Trainer(learner, plan(release=slow), patience_seconds=0.01).run(Rows(make_blocks(40, 40)))
    assert ["its directory may be unavailable" in record.message for record in caplog.records] == [True]
    assert (result.exit_code, result.summary["versions"]) == (0, [1])
