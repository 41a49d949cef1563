"""The engine: models from a directory or from Python objects, batched and versioned, called in process.

The same engine answers behind the REST and gRPC front ends; they add codecs, nothing else. Everything but
the models' own work happens in the serving thread: that of the event loop in which the engine was started.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from headrace import crossing
from headrace.batching.request import NO_DEADLINE, Answer, AwaitedRequest, Request, Settlement, Waiter, due
from headrace.batching.threads import say_waiting
from headrace.batching.waiting import WaitingRequest
from headrace.clock import LoopClock
from headrace.config import BatchingPolicy, ServerConfig, config_of_objects
from headrace.crossing import run_in
from headrace.errors import ConfigError, FailedPrecondition
from headrace.lifecycle.background import LoaderThreads
from headrace.lifecycle.manager import Manager
from headrace.lifecycle.source import DirectorySource
from headrace.lifecycle.state import State, VersionStatus
from headrace.lifecycle.unsettled import Unsettled
from headrace.lifecycle.wanted import Source, Want, Wanted
from headrace.loaded import LoadedVersion, VersionLoader
from headrace.outcomes import Call, Door, InProcessCall, Outcome, Outcomes, SubmittedRequest
from headrace.servable import CheckedInputs, Servable, signature_named
from headrace.tensors import Array
from headrace.versions.trust import trusted_files, verifier

if TYPE_CHECKING:
    from headrace.archive.archive import Archive

_log = logging.getLogger(__name__)

_SETTLED = frozenset({State.READY, State.FAILED})


class ModelSpec(NamedTuple):
    """Which model a request means, as TensorFlow Serving's ModelSpec.

    Attributes:
        name: The model's name.
        version: A version's number; None for the default version.
        label: A label that points at a version; not together with ``version``.
        signature: Which way to call it; the default one if empty.
    """

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""


class Engine:
    """Models that answer in process.

    Use it as an asynchronous context manager in the loop that shall serve, or ``with Engine.in_thread(…)``
    from ordinary code::

        async with Engine("models") as engine:
            answer = await engine.predict("half_plus_two", {"x": [1.0, 2.0]})

    Attributes:
        config: The settings.
        manager: Which versions are loaded.
        totals: What each model's versions have done together.
        outcomes: Where calls end, and whoever wants to know of each observes.
        archive: What inputs of models come from, where their settings say so; None without one.
        on_change: Told the name of a model when one of its versions has changed, in the serving thread.
        awaits_archive: Whether models with such inputs wait for ``use_archive``, and are not there before.
    """

    def __init__(
        self,
        models: str | Path | None = None,
        *,
        config: ServerConfig | None = None,
        objects: Mapping[str, Servable] | None = None,
        batching: BatchingPolicy | None = None,
        archive: Archive | None = None,
        source: Callable[[Want], Source] | None = None,
    ) -> None:
        """Describe an engine; ``start`` or ``async with`` brings it to life.

        Args:
            models: A directory of models, ``DIR/NAME/NUMBER/…``, watched for new versions.
            config: The settings; the defaults if left out.
            objects: Servables by name, served as version 1 of models beside those of the directory.
            batching: The batching policy of ``objects``.
            archive: What inputs of models come from; the caller closes it, after the engine.
            source: Makes what says which versions are wanted, where that is not a look at the directories.

        Raises:
            ConfigError: There is nothing to serve, or ``batching`` asks for processes.
        """
        self.config = config or ServerConfig()
        if models is None and not (objects or self.config.models or self.config.archive):
            raise ConfigError(
                "nothing to serve: give a directory of models, objects, or models in the configuration"
            )
        self._models = None if models is None else Path(models).absolute()
        self._objects = dict(objects or {})
        self._object_config = config_of_objects(batching or BatchingPolicy())
        self.archive = archive
        self._make_source = source
        self.awaits_archive = self._started = False
        self.on_change: Callable[[str], object] | None = None
        self._forks, self._clock = crossing.NOT_STARTED, LoopClock()
        self._threads = LoaderThreads(self._clock, self._serves)
        loader = VersionLoader(
            self._clock,
            self._threads,
            allow_code=self.config.allow_code,
            call=self.predict_blocking,
            find=self.loaded,
            ready=lambda model: self.manager.ready_now(model),  # noqa: PLW0108 - made below
            objects={(name, 1): servable for name, servable in self._objects.items()},
            verifier=verifier(self.config.signing_keys),
            trusted=trusted_files(self._models, self.config),
            archive=lambda: self.archive,
            fair=self.config.access.is_on,
            isolate=self.config.isolate,
        )
        self.totals = loader.totals
        self.outcomes = Outcomes()
        self.manager: Manager[LoadedVersion] = Manager(
            loader,
            self._clock,
            self._threads,
            load_threads=self.config.load_threads,
            on_change=self._changed,
        )

    @classmethod
    def from_objects(
        cls, objects: Mapping[str, Servable], *, batching: BatchingPolicy | None = None
    ) -> Engine:
        """An engine over Servables that exist already.

        Args:
            objects: Servables by name, each served as version 1.
            batching: Their batching policy.
        """
        return cls(objects=objects, batching=batching)

    # --- life ---

    def _serves(self) -> bool:
        return self.manager.serving()

    async def start(self, *, wait: bool = True) -> None:
        """Start loading, in the running event loop, whose thread becomes the serving thread.

        Args:
            wait: Whether to return only when every model has been loaded, or has failed to, once.

        Raises:
            ConfigError: The directory of models cannot be read, or the configuration is wrong.
        """
        self._forks = crossing.forks
        if self._models is not None and not self._models.is_dir():
            raise ConfigError(f"models: {self._models} is not a directory")
        self._loop = asyncio.get_running_loop()
        self._serving_thread = threading.get_ident()
        self._clock.bind(self._loop)
        self._settled = asyncio.Event()
        self._unsettled = Unsettled(self.manager.models, self._is_settled)
        self._source: Source | None = None
        self._wanted: tuple[Mapping[str, Wanted], Mapping[str, str]] | None = None
        self._started = True
        if self._make_source is not None:
            self._source = self._make_source(self._want)
            self._source.start()
        elif self._models is not None or self.config.models:
            self._source = DirectorySource(
                self._models, self._want, self._clock, self._threads, self.config, self._objects
            )
            self._source.start()
        else:
            self._want({}, {})
        if wait:
            await self._settled.wait()

    def _want(self, wanted: Mapping[str, Wanted], unusable: Mapping[str, str]) -> None:
        """Take the Source's whole wanted state, and add the objects that were given in process."""
        self._wanted = wanted, unusable
        models = {name: Wanted({1: Path(name)}, self._object_config) for name in self._objects}
        waits = {name for name, one in wanted.items() if self.awaits_archive and one.config.inputs}
        models |= {name: one for name, one in wanted.items() if name not in waits}
        self.manager.want(models, unusable, is_all=not waits)
        self._look_whether_settled()

    def use_archive(self, archive: Archive) -> None:
        """Have inputs of models come from an archive, once it is open. Serving thread only.

        Args:
            archive: The archive; the caller closes it.
        """
        self.archive, self.awaits_archive = archive, False
        if wanted := self._wanted:
            self._settled.clear()
            self._want(*wanted)

    def _changed(self, model: str, status: VersionStatus) -> None:
        _log.info("version is %s", status.state.value, extra={"model": model, "version": status.version})
        self._look_whether_settled()
        if self.on_change is not None:
            self.on_change(model)

    def _look_whether_settled(self) -> None:
        if not self._settled.is_set() and self._unsettled.is_none():
            self._settled.set()

    def _is_settled(self, model: str) -> bool:
        """Whether each version of a model is ready, or has failed once; so labels point somewhere."""
        if not self.manager.knows(model):
            return True
        return all(status.state in _SETTLED or status.attempts > 1 for status in self.manager.status(model))

    @property
    def is_settled(self) -> bool:
        """Whether every model has been loaded, or has failed to, once."""
        return self._settled.is_set()

    async def settle(self, timeout_seconds: float) -> bool:
        """Wait until every model has been loaded, or has failed to, once.

        Args:
            timeout_seconds: How long to wait at the most.

        Returns:
            Whether that came true.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), timeout_seconds)
        return self.is_settled

    async def close(self) -> None:
        """Let every model answer what it has taken, and unload it."""
        if not self._started:
            return
        self._started = False
        if self._source is not None:
            self._source.stop()
        closed = asyncio.Event()
        self.manager.close(closed.set)
        await closed.wait()

    async def __aenter__(self) -> Self:
        """Start, and wait until every model has been loaded or has failed to."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    @classmethod
    @contextmanager
    def in_thread(
        cls,
        models: str | Path | None = None,
        *,
        config: ServerConfig | None = None,
        objects: Mapping[str, Servable] | None = None,
        batching: BatchingPolicy | None = None,
        archive: Archive | None = None,
    ) -> Iterator[Engine]:
        """Run an engine in a thread of its own: call ``predict_blocking``; no event loop is needed.

        Args:
            models: As in ``Engine``.
            config: As in ``Engine``.
            objects: As in ``Engine``.
            batching: As in ``Engine``.
            archive: As in ``Engine``.
        """
        engine = cls(models, config=config, objects=objects, batching=batching, archive=archive)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="headrace", daemon=True)
        thread.start()
        try:
            run_in(loop, engine.start())
            yield engine
        finally:
            if engine._forks == crossing.forks:
                run_in(loop, engine.close())
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()

    # --- predicting ---

    def loaded(self, model: str, version: int | None = None, label: str | None = None) -> LoadedVersion:
        """The loaded version that a request means.

        Serving thread only; submit to it before awaiting anything.

        Args:
            model: The model's name.
            version: The version's number; None for the default one.
            label: A label that points at a version; not together with ``version``.

        Raises:
            NotFound: There is no such model, version or label.
            Unavailable: It is still loading.
            FailedPrecondition: It failed to load.
        """
        return self.manager.get(model, version, label)

    def submit(
        self,
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        respond: Callable[[Settlement], object],
        *,
        deadline: float = NO_DEADLINE,
        waiter: Waiter | None = None,
    ) -> Request:
        """Predict at the lowest cost: answered by a callback, once. Serving thread only.

        That is a call of its own: it ends when the callback is called, or when nobody waits any more.

        Args:
            loaded: From ``loaded``, got in the same turn of the event loop.
            inputs: From ``Signature.check``, or made by a codec.
            respond: Called in the serving thread with the Answer or the error; perhaps before this returns.
            deadline: On the monotonic clock, in seconds.
            waiter: Tells whether somebody still waits; without one, ``Request.abandon`` does.

        Returns:
            The request, which can be abandoned.
        """
        request = SubmittedRequest(
            inputs.layout, inputs.columns, inputs.rows, respond, deadline=deadline, waiter=waiter
        )
        request.begin(self._in_process_call(), self.outcomes, loaded.origin)
        loaded.predictor.submit(request)
        return request

    def answer(
        self,
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> asyncio.Future[Answer]:
        """Predict; await the future for the Answer. Cancelling it means that it is not computed.

        What it is for is the caller's call, which ends there: see ``headrace.outcomes``.

        Args:
            loaded: From ``loaded``, got in the same turn of the event loop.
            inputs: Checked inputs.
            deadline: On the monotonic clock, in seconds.
            call: What the request came with; told who answered, if that is not the model. Not ended here.

        Returns:
            A future of this engine's loop; its exception is the HeadraceError why there is no answer.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        if call is not None and call.outcome is not None:
            call.outcome.handed_to(loaded.origin, future)
        loaded.predictor.submit(AwaitedRequest(inputs, future, deadline, call))
        return future

    async def predict(
        self,
        model: str | ModelSpec,
        inputs: Mapping[str, object],
        *,
        outputs: Iterable[str] = (),
        timeout_seconds: float | None = None,
    ) -> dict[str, Array]:
        """Answer one request; concurrent ones share batches.

        Args:
            model: The model's name; or a ModelSpec for a certain version, label or signature of it.
            inputs: Arrays or nested lists by input name; the first axis is rows, the same number in each.
            outputs: The outputs wanted; all of them if empty.
            timeout_seconds: How long the answer is worth waiting for; refused at once when that cannot be
                kept.

        Returns:
            Arrays by output name, views of the batch's outputs with this request's rows.

        Raises:
            HeadraceError: Why there is no answer.
        """
        call = self._in_process_call()
        try:
            spec = ModelSpec(model) if isinstance(model, str) else model
            loaded = self.loaded(spec.name, spec.version, spec.label)
            found = signature_named(loaded.signatures, spec.signature)
            chosen = found.check_outputs(outputs)
            checked = found.check(inputs)
            deadline = NO_DEADLINE if timeout_seconds is None else due(self._clock.now(), timeout_seconds)
            if call.outcome is not None:
                call.outcome.handed_to(loaded.origin)
            answer = loaded.at_once.answer(checked, deadline) if loaded.at_once is not None else None
            if answer is None:
                answer = await self.answer(loaded, checked, deadline, call)
            elif call.outcome is not None:
                call.outcome.given(answer)
            given = answer.tensors(chosen or found.output_names)
        except BaseException as error:
            self.outcomes.failed(call, error)
            if self._forks == crossing.NOT_STARTED:
                raise FailedPrecondition(crossing.why_not(self._forks)) from error
            raise
        self.outcomes.answered(call)
        return given

    def predict_blocking(
        self,
        model: str | ModelSpec,
        inputs: Mapping[str, object],
        *,
        outputs: Iterable[str] = (),
        timeout_seconds: float | None = None,
    ) -> dict[str, Array]:
        """Answer one request from any thread but the serving one; concurrent ones share batches.

        Args:
            model: As in ``predict``.
            inputs: As in ``predict``.
            outputs: As in ``predict``.
            timeout_seconds: As in ``predict``.

        Raises:
            HeadraceError: Why there is no answer.
        """
        if self._forks != crossing.forks:
            raise FailedPrecondition(crossing.why_not(self._forks))
        if threading.get_ident() == self._serving_thread:
            raise self._refused("predict_blocking would block the serving thread; await predict() there")
        spec = ModelSpec(model) if isinstance(model, str) else model
        chosen = tuple(outputs)
        answered = self._predict_here(spec, inputs, chosen, timeout_seconds)
        if answered is not None:
            return answered
        asked = self.predict(spec, inputs, outputs=chosen, timeout_seconds=timeout_seconds)
        return run_in(self._loop, asked)

    def _predict_here(
        self,
        spec: ModelSpec,
        inputs: Mapping[str, object],
        outputs: Iterable[str],
        timeout_seconds: float | None,
    ) -> dict[str, Array] | None:
        """Answer one request without the serving thread; None where that has to see to it.

        It has to where nothing is ready, something stands around the Batcher, or a model asks itself.
        """
        find, which = self.manager.ready_now, (spec.name, spec.version, spec.label)
        loaded = find(*which)
        callers = loaded.callers if loaded is not None else None
        if loaded is None or callers is None or callers.works_here:
            if callers is None and loaded is not None and loaded.batcher.waits_for_itself:
                raise self._refused(f"{loaded.name} asks itself while its only instance computes")
            say_waiting()
            return None
        outcome = Outcome(Door.IN_PROCESS) if self.outcomes.all_observed else None
        try:
            found = signature_named(loaded.signatures, spec.signature)
            chosen = found.check_outputs(outputs)
            arrived = self._clock.now()
            deadline = NO_DEADLINE if timeout_seconds is None else due(arrived, timeout_seconds)
            request = WaitingRequest(found.check(inputs), deadline, arrived)
            if outcome is not None:
                outcome.handed_to(loaded.origin)
            answer = callers.answer(request, lambda: find(*which) is loaded)
            if answer is None:
                return None
            given = answer.tensors(chosen or found.output_names)
        except BaseException as error:
            self.outcomes.ended_in_thread(outcome, error, self._clock)
            raise
        self.outcomes.ended_in_thread(outcome, answer, self._clock)
        return given

    def _refused(self, why: str) -> FailedPrecondition:
        """End a blocking call, in its own thread, that would wait for ever."""
        error = FailedPrecondition(why)
        self.outcomes.ended_in_thread(self._in_process_call().outcome, error, self._clock)
        return error

    def _in_process_call(self) -> InProcessCall:
        return InProcessCall(Outcome(Door.IN_PROCESS) if self.outcomes.all_observed else None)
