"""The Trainer: runs a Learner in the loop, reports, publishes and saves, and ends every run cleanly.

``headrace.training.running.loop`` decides what is due. The learner's thread copies the weights, and
another thread writes them while learning goes on. (A Keras model is written by the learner's thread.) A
checkpoint lists versions, so it waits for pending ones.
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

from headrace.base.errors import ConfigError, HeadraceError, ModelError
from headrace.evaluation.progressive_validation import Window
from headrace.stream.block import Block
from headrace.training.releasing.publishing import Publication, Release, Training
from headrace.training.reporting.progress import Observer, Pace, Progress, described, summary
from headrace.training.running.checkpoint import Checkpoint, difference, save_checkpoint
from headrace.training.running.learner import Learner
from headrace.training.running.loop import (
    EXIT_CODES,
    NEVER,
    Blocks,
    Every,
    Interruptions,
    Mark,
    error_text,
    is_due,
    run_loop,
    seconds_until,
)

_VERSIONS_SAVED = 10_000
"""Number of most recent versions listed in a checkpoint, which bounds the manifest of an unbounded run."""

_VERSION_POLL_SECONDS = 0.1
"""Interval for checking, while no rows arrive, whether a version has been written."""

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 60.0
"""Seconds that learning waits for a version to be written before a warning; the file system may hang."""


class RowPositions(Protocol):
    """A source of rows with positions of its own, such as a Kafka topic."""

    def position(self, rows: int) -> Mapping[str, object]:
        """Return the position after the first ``rows`` rows of the stream; JSON-serialisable."""

    def saved(self) -> None:
        """Note that a checkpoint with the last position was saved."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The actions of a run besides learning.

    Attributes:
        release: Function that releases a version; None to publish nothing.
        publish_every: How often to publish. A final version is published as well if rows were learnt since
            the last one, unless learning failed.
        checkpoint: Directory of checkpoints; None for none.
        checkpoint_every: How often to save a checkpoint. A final one is saved as well if rows were taken
            since the last one, unless the model diverged.
        most_rows: Number of rows of the stream after which the run ends; None for all.
        identity: Properties that a checkpoint and the run must have in common, such as the model's settings
            and the schema.
        origin: Source of the rows' positions, which checkpoints record; None if rows are counted from the
            first one.
    """

    release: Release | None = None
    publish_every: Every = NEVER
    checkpoint: Path | None = None
    checkpoint_every: Every = NEVER
    most_rows: int | None = None
    identity: Mapping[str, object]
    origin: RowPositions | None = None


class RunResult(NamedTuple):
    """Result of a run.

    Attributes:
        summary: Last line of the run.
        exit_code: Exit code of the process.
        error: Error text; None if nothing went wrong.
    """

    summary: dict[str, object]
    exit_code: int
    error: str | None


class _Saved(msgspec.Struct, kw_only=True):
    """The trainer's state in a checkpoint.

    Attributes:
        unlisted: Number of versions published since the last window, whose next line lists them.
    """

    seconds: float
    idle_seconds: float
    stream_bytes: int
    versions: list[int]
    published_rows: int
    unlisted: int = 0
    unfinished: tuple[int, int] | None = None


class Trainer:
    """A run that learns from a stream until the stream ends, an error occurs, or a signal arrives."""

    def __init__(
        self,
        learner: Learner,
        plan: RunPlan,
        observers: Sequence[Observer] = (),
        now: Callable[[], float] = time.monotonic,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """Prepare a run.

        Args:
            learner: The learner.
            plan: Actions besides learning.
            observers: Observers of the run's events.
            now: Clock, in seconds.
            patience_seconds: Time that learning waits for a version before a warning is logged.
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
        self._versions: tuple[int, ...] = ()  # a tuple, so that progress shares it without a copy
        self._writing: tuple[Future[Publication], Mark] | None = None
        self._failures: dict[str, str] = {}
        self._writers = ThreadPoolExecutor(1, "headrace-publisher")  # no thread before a version is written

    @property
    def rows(self) -> int:
        """Number of rows of the stream taken."""
        return self._learner.position.rows

    @property
    def progress(self) -> Progress:
        """Progress of the run."""
        blocks, before = self._blocks, self._before
        return Progress(
            rows=self._learner.position.rows,
            seconds=before.seconds + self._now() - self._started,
            idle_seconds=before.idle_seconds + (blocks.idle_seconds if blocks else 0.0),
            stream_bytes=before.stream_bytes + (blocks.stream_bytes if blocks else 0),
            pending_rows=self._learner.pending_rows,
            versions=self._versions,
        )

    @property
    def _mark(self) -> Mark:
        progress = self.progress
        return Mark(progress.rows, progress.seconds)

    def resume(self, checkpoint: Checkpoint, *, continued: bool) -> Progress:
        """Resume from a checkpoint.

        Args:
            checkpoint: The checkpoint.
            continued: Whether the input starts with the rows after the checkpoint; otherwise with the
                stream's first row.

        Returns:
            The progress at the checkpoint, with the versions published until the last window only.

        Raises:
            ConfigError: The checkpoint is of another model or schema, or of other windows, slices or label
                delay.
        """
        for name, wanted in self._plan.identity.items():
            saved, here = checkpoint.meta.get(name), msgspec.json.decode(msgspec.json.encode(wanted))
            if saved != here:
                raise ConfigError(
                    f"checkpoint: its {name} is not the one of this run: {difference(saved, here, name)}; "
                    "use the same options and stream, or another --checkpoint directory"
                )
        self._learner.restore(checkpoint.state, checkpoint.meta)
        self._before = msgspec.convert(checkpoint.meta.get("trainer"), _Saved)
        if self._before.unfinished is not None:
            _log.warning(
                "checkpoint %d was saved after learning failed while taking rows %d to %d, and may include "
                "some of them; to resume from the previous checkpoint, delete this one",
                checkpoint.number,
                self._before.unfinished[0],
                self._before.unfinished[1] - 1,
            )
        if not continued:
            self._before.stream_bytes = 0  # the input is read again from its start
        self._versions = tuple(self._before.versions)
        self._asked = self._published = Mark(self._before.published_rows, self._before.seconds)
        self._save_asked = self._checkpointed = Mark(self._learner.position.rows, self._before.seconds)
        listed = max(0, len(self._versions) - self._before.unlisted)
        self._windowed = self.progress._replace(versions=self._versions[:listed])
        return self._windowed

    def run(self, blocks: Blocks) -> RunResult:
        """Learn until the stream ends, or the run is stopped.

        Args:
            blocks: Rows of the stream that follow the rows already taken.
        """
        self._blocks, self._started = blocks, self._now()
        with self._writers, Interruptions() as interruptions:
            stopped, error = run_loop(blocks, self, self._plan.most_rows, interruptions)
            try:
                self._end(stopped)
            except ModelError as raised:  # from the pending rows
                stopped, error = "diverged", raised.message
            except Exception as raised:  # noqa: BLE001  # Any error ends the run; its progress is kept.
                stopped, error = "error", self._unexpected(raised)
        said = summary(self._learner.windows.total(), self.progress, stopped)
        code = EXIT_CODES[stopped]
        for failure in self._failures.values():
            error, code = error or failure, code or 1
        if error is not None:
            said["error"] = error
        return RunResult(said, code, error)

    def take(self, block: Block) -> None:
        """Learn from a block, and report. Called by the loop."""
        closed = self._learner.take(block)
        self._note_version()
        progress = self.progress
        self._say(closed, progress)
        for observer in self._observers:
            observer.moved(progress)

    def act(self) -> float | None:
        """Publish and save as due. Called by the loop.

        Returns:
            Seconds until the next action is due if no block arrives; None for never.
        """
        self._note_version()
        every, saved_every = self._plan.publish_every, self._plan.checkpoint_every
        mark = self._mark
        if is_due(every, self._asked, mark):
            self._publish()
        if is_due(saved_every, self._save_asked, mark):
            self._save()
        mark = self._mark
        due = [seconds_until(every, self._asked, mark), seconds_until(saved_every, self._save_asked, mark)]
        if every.seconds and self._writing is not None:
            due.append(_VERSION_POLL_SECONDS)
        return min((one for one in due if one is not None), default=None)

    def explain(self, error: Exception) -> str:
        """Return the error text of the exception that ended the loop. Called by the loop."""
        return error.message if isinstance(error, HeadraceError) else self._unexpected(error)

    def _end(self, stopped: str) -> None:
        """Publish and save the final state if it is new, unless the model has diverged.

        After an unfinished block it is only saved.
        """
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
        # Save before the pending rows are learnt and the window is closed: a later run may resume here.
        if self._learner.position.rows > self._checkpointed.rows:
            self._save()
        if over:
            self._say(self._learner.finish(), ended._replace(versions=self._versions))
        if late:
            self._publish()
            self._await_version()

    def _publish(self) -> None:
        self._await_version()
        progress = self.progress
        self._asked = Mark(progress.rows, progress.seconds)
        if self._plan.release is None:
            return
        last = self._learner.windows.last
        training = Training(
            rows=progress.rows - (progress.pending_rows or 0),
            stream_bytes=progress.stream_bytes,
            newest_timestamp=self._learner.position.newest_timestamp,
            metrics=described(last.score if last else self._learner.windows.total()),
        )
        try:
            write = self._plan.release(training)
        except Exception as error:  # noqa: BLE001  # A failed publication does not end the run.
            self._fail("not published", error)
        else:
            self._writing = self._writers.submit(write), self._asked

    def _note_version(self) -> None:
        """Report the result of the version that was being written, if it has been."""
        if self._writing is not None and self._writing[0].done():
            self._await_version()

    def _await_version(self) -> None:
        """Wait for the version that is being written, if any, and report its result."""
        if self._writing is None:
            return
        (future, mark), self._writing = self._writing, None
        if not wait((future,), self._patience_seconds).done:
            _log.warning(
                "learning and saving wait for a version to be written, which has taken more than %g s: "
                "its directory may be unavailable",
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
        self._await_version()
        progress = self.progress
        self._save_asked = Mark(progress.rows, progress.seconds)
        directory = self._plan.checkpoint
        if directory is None:
            return
        saved = _Saved(
            seconds=progress.seconds,
            idle_seconds=progress.idle_seconds,
            stream_bytes=progress.stream_bytes,
            versions=list(self._versions[-_VERSIONS_SAVED:]),
            published_rows=self._published.rows,
            unlisted=len(self._versions) - len(self._windowed.versions),
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
        """Return the error text, with the rows that could not be learnt, if any."""
        rows = self._learner.unfinished
        said = error_text(error)
        if rows is None:
            return said
        kept = "the saved model may include some of these rows"
        return f"learning failed while taking rows {rows[0]} to {rows[1] - 1}: {said}; {kept}"

    def _fail(self, what: str, error: Exception) -> None:
        self._failures[what] = f"{what}: {error_text(error)}"
        for observer in self._observers:
            observer.failed(self._failures[what])

    def _say(self, windows: Sequence[Window], progress: Progress) -> None:
        """Notify observers of the windows that a block closed."""
        if not windows:
            return
        pace = Pace.between(self._windowed, progress)
        self._windowed = progress
        for window in windows:
            for observer in self._observers:
                observer.closed(window, pace, progress)
