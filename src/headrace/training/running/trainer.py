"""The Trainer: puts a Learner into the loop, reports, publishes, saves, and ends well whatever happens.

What is due is decided by ``headrace.training.running.schedule``. Versions are stripped by the learner's
thread and written by another, so that learning goes on meanwhile; a checkpoint waits for them, so that it
knows them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from headrace.errors import ConfigError, HeadraceError, ModelError
from headrace.stream.block import Block
from headrace.training.releasing.publishing import Publication, Release, Training
from headrace.training.reporting.lines import described, summary
from headrace.training.reporting.progress import Observer, Pace, Progress
from headrace.training.running.checkpoint import Checkpoint, save_checkpoint
from headrace.training.running.interruptions import Interruptions
from headrace.training.running.learner import Learner
from headrace.training.running.loop import EXIT_CODES, Blocks, for_people, take_all
from headrace.training.running.resumption import difference
from headrace.training.running.schedule import NEVER, Every, Mark, is_due
from headrace.training.scoring.windows import Window

_VERSIONS_SAVED = 10_000
"""So many of the versions published last does a checkpoint tell: a run has no end, its manifest has."""

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 60.0
"""After this long it is told that learning waits for a version: a file system may never answer."""


class Origin(Protocol):
    """Where a stream's rows lie, such as a topic of Kafka."""

    def position(self, rows: int) -> Mapping[str, object]:
        """Where the row of a number is, as JSON can hold it."""

    def saved(self) -> None:
        """Note that a checkpoint with the last position was saved."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run does besides learning.

    Attributes:
        release: How a version is made; None to publish nothing.
        publish_every: How often; a version of the end is published in any case.
        checkpoint: Where checkpoints are; None for none.
        checkpoint_every: How often one is saved; one of the end is saved in any case.
        most_rows: After how many rows of the stream the run ends; None for all.
        identity: What must be the same for a checkpoint to fit: the model's settings and the schema.
        origin: What knows where the rows lie, so that a checkpoint says where to go on; None if rows are
            counted from the first one.
    """

    release: Release | None = None
    publish_every: Every = NEVER
    checkpoint: Path | None = None
    checkpoint_every: Every = NEVER
    most_rows: int | None = None
    identity: Mapping[str, object]
    origin: Origin | None = None


class RunResult(NamedTuple):
    """How a run ended.

    Attributes:
        summary: Its last line.
        exit_code: What the process answers.
        error: What ended it; None if nothing went wrong.
    """

    summary: dict[str, object]
    exit_code: int
    error: str | None


class _Saved(msgspec.Struct, kw_only=True):
    """What a checkpoint keeps of the trainer."""

    seconds: float
    idle_seconds: float
    stream_bytes: int
    versions: list[int]
    published_rows: int
    unfinished: tuple[int, int] | None = None


class Trainer:
    """Learns from a stream until it ends, fails, or somebody wants it to end."""

    def __init__(
        self,
        learner: Learner,
        plan: Plan,
        observers: Sequence[Observer] = (),
        now: Callable[[], float] = time.monotonic,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """Get ready.

        Args:
            learner: What learns.
            plan: What else is done.
            observers: Who wants to know.
            now: What tells the time, in seconds.
            patience_seconds: How long learning may wait for a version before that is told.
        """
        self._learner = learner
        self._plan = plan
        self._observers = tuple(observers)
        self._now = now
        self._patience_seconds = patience_seconds
        self._before = _Saved(seconds=0.0, idle_seconds=0.0, stream_bytes=0, versions=[], published_rows=0)
        self._started = now()
        self._blocks: Blocks | None = None
        self._asked = self._published = Mark()
        self._save_asked = self._checkpointed = Mark()
        self._windowed = Progress()
        self._versions: tuple[int, ...] = ()  # told with each block: never copied for that
        self._writing: tuple[Future[Publication], Mark] | None = None
        self._failures: dict[str, str] = {}
        self._writers = ThreadPoolExecutor(1, "headrace-publisher")  # no thread before the first version

    @property
    def rows(self) -> int:
        """How many rows of the stream were taken."""
        return self._learner.position.rows

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        blocks, before = self._blocks, self._before
        return Progress(
            rows=self._learner.position.rows,
            seconds=before.seconds + self._now() - self._started,
            idle_seconds=before.idle_seconds + (blocks.idle_seconds if blocks else 0.0),
            stream_bytes=before.stream_bytes + (blocks.stream_bytes if blocks else 0),
            pending_rows=self._learner.pending_rows,
            versions=self._versions,
        )

    def resume(self, checkpoint: Checkpoint, *, continued: bool) -> None:
        """Go on from a checkpoint.

        Args:
            checkpoint: What was saved.
            continued: Whether the input goes on where the checkpoint was saved; it starts anew otherwise.

        Raises:
            ConfigError: It is that of another model, schema or way to score.
        """
        for name, wanted in self._plan.identity.items():
            saved, here = checkpoint.meta.get(name), msgspec.json.decode(msgspec.json.encode(wanted))
            if saved != here:
                raise ConfigError(
                    f"checkpoint: its {name} is not the one of this run: {difference(saved, here, name)}; "
                    "give the same options and stream, or another --checkpoint directory"
                )
        self._learner.restore(checkpoint.state, checkpoint.meta)
        self._before = msgspec.convert(checkpoint.meta.get("trainer"), _Saved)
        if self._before.unfinished is not None:
            _log.warning(
                "checkpoint %d was saved when rows %d to %d could not be learnt, perhaps with a part of "
                "them; delete it to go on from the one before it",
                checkpoint.number,
                *self._before.unfinished,
            )
        if not continued:
            self._before.stream_bytes = 0  # they are read again
        self._versions = tuple(self._before.versions)
        self._asked = self._published = Mark(self._before.published_rows, self._before.seconds)
        self._save_asked = self._checkpointed = Mark(self._learner.position.rows, self._before.seconds)
        self._windowed = self.progress

    def run(self, blocks: Blocks) -> RunResult:
        """Learn until the stream ends, or the run is ended.

        Args:
            blocks: The stream's rows after those that were learnt from already.
        """
        self._blocks, self._started = blocks, self._now()
        with self._writers, Interruptions() as interruptions:
            stopped, error = take_all(blocks, self, self._plan.most_rows, interruptions)
            try:
                self._end(stopped)
            except ModelError as raised:  # by rows whose labels came last
                stopped, error = "diverged", raised.message
            except Exception as raised:  # noqa: BLE001  # The run's end, whatever is wrong: what was learnt is kept.
                stopped, error = "error", self._unexpected(raised)
        said = summary(self._learner.windows.total(), self.progress, stopped)
        code = EXIT_CODES[stopped]
        for failure in self._failures.values():
            error, code = error or failure, code or 1
        if error is not None:
            said["error"] = error
        return RunResult(said, code, error)

    def take(self, block: Block) -> None:
        """Learn from a block; then report, publish and save what is due. Called by the loop."""
        closed = self._learner.take(block)
        if self._writing is not None and self._writing[0].done():
            self._await_version()
        progress = self.progress
        self._say(closed, progress)
        for observer in self._observers:
            observer.moved(progress)
        mark = Mark(progress.rows, progress.seconds)
        if is_due(self._plan.publish_every, self._asked, mark):
            self._publish()
        if is_due(self._plan.checkpoint_every, self._save_asked, mark):
            self._save()

    def explain(self, error: Exception) -> str:
        """What ended the loop, for people. Called by the loop."""
        return error.message if isinstance(error, HeadraceError) else self._unexpected(error)

    def _end(self, stopped: str) -> None:
        """Publish and save all that was learnt; a model that has diverged stays as it was saved last."""
        ended = self.progress
        self._await_version()
        if stopped == "diverged":
            return
        over = stopped in ("end", "rows")
        late = over and bool(self._learner.pending_rows)
        whole = self._learner.unfinished is None
        if whole and not late and self._learner.position.rows > self._published.rows:
            self._publish()
            self._await_version()
        # Before the rest is learnt and the open window closed: more rows of the stream may come some day.
        if self._learner.position.rows > self._checkpointed.rows:
            self._save()
        if over:
            self._say(self._learner.finish(), ended._replace(versions=self._versions))
        if late:
            self._publish()
            self._await_version()

    def _publish(self) -> None:
        self._await_version()
        if self._plan.release is None:
            return
        progress = self.progress
        self._asked = Mark(progress.rows, progress.seconds)
        last = self._learner.windows.last
        training = Training(
            rows=progress.rows - (progress.pending_rows or 0),
            stream_bytes=progress.stream_bytes,
            newest_timestamp=self._learner.position.newest_timestamp,
            metrics=described(last.score if last else self._learner.windows.total()),
        )
        try:
            write = self._plan.release(training)
        except Exception as error:  # noqa: BLE001  # What cannot be published ends no learning.
            self._fail("not published", error)
        else:
            self._writing = self._writers.submit(write), self._asked

    def _await_version(self) -> None:
        """Wait for the version that is being written, if there is one."""
        if self._writing is None:
            return
        (future, mark), self._writing = self._writing, None
        if not wait((future,), self._patience_seconds).done:
            _log.warning(
                "nothing is learnt or saved before a version is written, which takes more than %g s: "
                "its directory may not answer",
                self._patience_seconds,
            )
        try:
            publication = future.result()
        except Exception as error:  # noqa: BLE001  # As above.
            self._fail("not published", error)
            return
        self._failures.pop("not published", None)
        self._published = mark
        self._versions += (publication.version,)
        for observer in self._observers:
            observer.published(publication, mark.rows)

    def _save(self) -> None:
        directory = self._plan.checkpoint
        if directory is None:
            return
        self._await_version()
        progress = self.progress
        self._save_asked = Mark(progress.rows, progress.seconds)
        saved = _Saved(
            seconds=progress.seconds,
            idle_seconds=progress.idle_seconds,
            stream_bytes=progress.stream_bytes,
            versions=list(self._versions[-_VERSIONS_SAVED:]),
            published_rows=self._published.rows,
            unfinished=self._learner.unfinished,
        )
        try:
            state = self._learner.state()
            meta = {**self._plan.identity, **state.meta, "trainer": msgspec.to_builtins(saved)}
            if self._plan.origin is not None:
                meta |= {"origin": self._plan.origin.position(progress.rows)}
            save_checkpoint(directory, state.arrays, meta)
        except Exception as error:  # noqa: BLE001  # As above.
            self._fail("not saved", error)
        else:
            self._failures.pop("not saved", None)
            self._checkpointed = self._save_asked
            if self._plan.origin is not None:
                self._plan.origin.saved()

    def _unexpected(self, error: Exception) -> str:
        """What ended the run, for people; where, for whoever mends it."""
        rows = self._learner.unfinished
        said = for_people(error)
        if rows is None:
            return said
        kept = "what was learnt before them is kept, perhaps with a part of them"
        return f"rows {rows[0]} to {rows[1]} cannot be learnt: {said}; {kept}"

    def _fail(self, what: str, error: Exception) -> None:
        self._failures[what] = f"{what}: {for_people(error)}"
        for observer in self._observers:
            observer.failed(self._failures[what])

    def _say(self, windows: Sequence[Window], progress: Progress) -> None:
        """Tell of windows that were closed by the same block."""
        if not windows:
            return
        pace = Pace.between(self._windowed, progress)
        self._windowed = progress
        for window in windows:
            for observer in self._observers:
                observer.closed(window, pace, progress)
