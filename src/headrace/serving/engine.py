# Longer than 500 lines: one class, whose ways to predict share its life and its state.
"""The engine: models from a directory or from Python objects, batched and versioned, called in process.

The REST and gRPC front ends use the same engine and add only codecs. All work runs in the serving thread (of
the event loop in which the engine was started), except that of models, loads and blocking callers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from headrace.base import event_loop
from headrace.base.clock import LoopClock
from headrace.base.errors import ConfigError, FailedPrecondition
from headrace.base.event_loop import run_in
from headrace.base.tensors import Array
from headrace.batching.calling_threads import WaitingRequest
from headrace.batching.compute_threads import say_waiting
from headrace.batching.part_streams import OnePart, PartStream
from headrace.batching.request import NO_DEADLINE, Answer, AwaitedRequest, Request, Settlement, Waiter, due
from headrace.config import BatchingPolicy, ServerConfig, config_of_objects
from headrace.lifecycle.desired_state import Source, Want, Wanted
from headrace.lifecycle.loader_threads import LoaderThreads
from headrace.lifecycle.manager import Manager
from headrace.lifecycle.model_records import Unsettled
from headrace.lifecycle.source import DirectorySource
from headrace.lifecycle.version_states import State, VersionStatus
from headrace.model.data_frames import Inputs
from headrace.model.servable import CheckedInputs, Servable, signature_named
from headrace.serving.loaded_version import LoadedVersion
from headrace.serving.model_calls import ModelCalls
from headrace.serving.version_loader import VersionLoader
from headrace.telemetry.outcomes import Call, Channel, InProcessCall, Outcome, Outcomes, SubmittedRequest
from headrace.versions.file_trust import trusted_files, verifier

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive

_log = logging.getLogger(__name__)

_SETTLED = frozenset({State.READY, State.FAILED})


class ModelSpec(NamedTuple):
    """The model that a request addresses, like TensorFlow Serving's ModelSpec.

    Attributes:
        name: The model's name.
        version: Number of a version; None for the default version.
        label: Label that points at a version; not together with ``version``.
        signature: Name of the signature; the default one if empty.
    """

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""


class Engine:
    """Models served in process.

    Use it as an asynchronous context manager in the event loop that will serve, or, from synchronous code,
    ``with Engine.in_thread(…)``::

        async with Engine("models") as engine:
            answer = await engine.predict("half_plus_two", {"x": [1.0, 2.0]})

    Attributes:
        config: The settings.
        manager: The Manager of the loaded versions.
        totals: Totals of each model over all its versions.
        outcomes: Records how calls end, and notifies observers of each call.
        archive: Source of model inputs that come from an archive, if settings say so; None without one.
        on_change: Called with a model's name when one of its versions has changed, in the serving thread.
        awaits_archive: Whether models with such inputs are held back until ``use_archive``.
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
        """Describe an engine; ``start`` or ``async with`` starts it.

        Args:
            models: Directory of models, ``DIR/NAME/NUMBER/…``, watched for new versions.
            config: The settings; defaults if None.
            objects: Servables by name, served as version 1 of models beside those of the directory.
            batching: Batching policy of ``objects``.
            archive: Source of model inputs that come from an archive; closed by the caller, after the engine.
            source: Creates the Source of wanted versions, if it is not a scan of the directories.

        Raises:
            ConfigError: There is nothing to serve, or the settings name unusable keys, owners or processes.
        """
        self.config = config or ServerConfig()
        if models is None and not (objects or self.config.models or self.config.archive):
            raise ConfigError(
                "nothing to serve: give a directory of models, objects, or models in the configuration"
            )
        self._models = None if models is None else Path(models).absolute()
        self._objects = dict(objects or {})
        self._object_config = config_of_objects(batching or BatchingPolicy())
        self.archive, self._make_source = archive, source
        self.awaits_archive = self._started = False
        self.on_change: Callable[[str], object] | None = None
        self._forks, self._clock = event_loop.NOT_STARTED, LoopClock()
        self._threads = LoaderThreads(self._clock, lambda: self.manager.serving())  # noqa: PLW0108 - made below
        loader = VersionLoader(
            self._clock,
            self._threads,
            allow_code=self.config.allow_code,
            calls=ModelCalls(self.predict, self.predict_blocking, lambda: self._loop),
            find=self.loaded,
            ready=lambda model: self.manager.ready_now(model),  # noqa: PLW0108 - made below
            objects={(name, 1): servable for name, servable in self._objects.items()},
            verifier=verifier(self.config.signing_keys),
            trusted=trusted_files(self._models, self.config),
            archive=lambda: self.archive,
            fair=self.config.access.is_on,
            isolate=self.config.isolate,
            drain_seconds=self.config.drain_seconds,
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
        """Create an engine over existing Servables.

        Args:
            objects: Servables by name, each served as version 1.
            batching: Their batching policy.
        """
        return cls(objects=objects, batching=batching)

    # --- life ---

    async def start(self, *, wait: bool = True) -> None:
        """Start loading models in the running event loop, whose thread becomes the serving thread.

        Args:
            wait: Whether to wait until each version has been loaded or has failed once.

        Raises:
            ConfigError: ``models`` is not a directory.
        """
        self._forks = event_loop.forks
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
        """Apply the Source's complete wanted state, plus the objects passed in process."""
        self._wanted = wanted, unusable
        models = {name: Wanted({1: Path(name)}, self._object_config) for name in self._objects}
        waits = {name for name, one in wanted.items() if self.awaits_archive and one.config.inputs}
        models |= {name: one for name, one in wanted.items() if name not in waits}
        self.manager.want(models, unusable, is_all=not waits)
        self._check_settled()

    def use_archive(self, archive: Archive) -> None:
        """Take model inputs from an archive, once it is open. Serving thread only.

        Args:
            archive: The archive; the caller closes it.
        """
        self.archive, self.awaits_archive = archive, False
        if wanted := self._wanted:
            self._settled.clear()
            self._want(*wanted)

    def _changed(self, model: str, status: VersionStatus) -> None:
        _log.info("version is %s", status.state.value, extra={"model": model, "version": status.version})
        self._check_settled()
        if self.on_change is not None:
            self.on_change(model)

    def _check_settled(self) -> None:
        if not self._settled.is_set() and self._unsettled.is_none():
            self._settled.set()

    def _is_settled(self, model: str) -> bool:
        """Return whether each version of a model is ready or has failed once, so that labels resolve."""
        if not self.manager.knows(model):
            return True
        return all(status.state in _SETTLED or status.attempts > 1 for status in self.manager.status(model))

    @property
    def is_settled(self) -> bool:
        """Whether each version has been loaded or has failed once."""
        return self._settled.is_set()

    async def settle(self, timeout_seconds: float) -> bool:
        """Wait until each version has been loaded or has failed once.

        Args:
            timeout_seconds: Longest wait in seconds.

        Returns:
            False if the wait timed out.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), timeout_seconds)
        return self.is_settled

    async def close(self) -> None:
        """Let each model answer its accepted requests, then unload it."""
        if not self._started:
            return
        self._started = False
        if self._source is not None:
            self._source.stop()
        closed = asyncio.Event()
        self.manager.close(closed.set)
        await closed.wait()
        self._clock.unbind()  # loads in progress are not awaited
        await asyncio.sleep(0)  # run the callbacks that their threads have scheduled

    async def __aenter__(self) -> Self:
        """Start, and wait until each version has been loaded or has failed once."""
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
        """Run an engine in a thread of its own, for ``predict_blocking`` without an event loop.

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
            if engine._forks == event_loop.forks:
                run_in(loop, engine.close())
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()

    # --- predicting ---

    def loaded(self, model: str, version: int | None = None, label: str | None = None) -> LoadedVersion:
        """Return the loaded version that a request addresses.

        Serving thread only; submit to the version before awaiting anything.

        Args:
            model: The model's name.
            version: The version's number; None for the default one.
            label: Label that points at a version; not together with ``version``.

        Raises:
            NotFound: There is no such model, version or label.
            Unavailable: The version is still loading.
            FailedPrecondition: The version failed to load.
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
        """Predict at the lowest cost, with a callback that is called once. Serving thread only.

        The request is a call of its own, which ends when the callback is called or the caller leaves.

        Args:
            loaded: From ``loaded``, obtained in the same turn of the event loop.
            inputs: From ``Signature.check``, or made by a codec.
            respond: Called in the serving thread with the Answer or the error, possibly before this returns.
            deadline: Deadline on the monotonic clock, in seconds.
            waiter: Tells whether the caller still waits; without one, use ``Request.abandon``.

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
        """Predict; await the future for the Answer. Cancelling it drops the request.

        The request belongs to the caller's call, which the caller ends: see ``headrace.telemetry.outcomes``.

        Args:
            loaded: From ``loaded``, obtained in the same turn of the event loop.
            inputs: Checked inputs.
            deadline: Deadline on the monotonic clock, in seconds.
            call: The request's call, notified of the origin if the answer is not from the model. Not ended
                here.

        Returns:
            A future of this engine's loop; its exception is the HeadraceError if there is no answer.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        if call is not None and call.outcome is not None:
            call.outcome.handed_to(loaded.origin, future)
        loaded.predictor.submit(AwaitedRequest(inputs, future, deadline, call))
        return future

    def parts(
        self,
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> PartStream | OnePart:
        """Open a stream; read it to its end, or close it. Serving thread only.

        The stream belongs to the caller's call, which the caller ends: see ``headrace.telemetry.outcomes``.

        Args:
            loaded: From ``loaded``, obtained in the same turn of the event loop.
            inputs: Checked inputs.
            deadline: Deadline of the whole stream in seconds on the monotonic clock.
            call: The request's call. Not ended here.

        Returns:
            An asynchronous iterator of Answers; of one for a model that does not answer in parts.

        Raises:
            HeadraceError: The stream is refused.
        """
        if loaded.streams is None:
            return OnePart(self.answer(loaded, inputs, deadline, call))
        if call is None or call.outcome is None:
            return loaded.streams.open(inputs, deadline, call)
        ended: asyncio.Future[Answer] = self._loop.create_future()
        call.outcome.handed_to(loaded.origin, ended)
        stream = loaded.streams.open(inputs, deadline, call)
        stream.ended = ended
        return stream

    async def predict(
        self,
        model: str | ModelSpec,
        inputs: Inputs,
        *,
        outputs: Iterable[str] = (),
        timeout_seconds: float | None = None,
    ) -> dict[str, Array]:
        """Answer one request; concurrent requests share batches.

        Args:
            model: The model's name, or a ModelSpec for a version, label or signature.
            inputs: A data frame, or arrays or lists by input name, whose first axis is rows.
            outputs: Names of the outputs to return; all if empty.
            timeout_seconds: Timeout in seconds; the request is refused at once if it cannot be met.

        Returns:
            Arrays by output name, views of the batch's outputs with this request's rows.

        Raises:
            HeadraceError: There is no answer.
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
            if self._forks == event_loop.NOT_STARTED:
                raise FailedPrecondition(event_loop.why_not(self._forks)) from error
            raise
        self.outcomes.answered(call)
        return given

    async def stream(
        self,
        model: str | ModelSpec,
        inputs: Inputs,
        *,
        outputs: Iterable[str] = (),
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[dict[str, Array], None]:
        """Answer one request in parts, each computed when the caller asks for it.

        A caller that stops before the end closes the iterator (``contextlib.aclosing``), which ends the
        model's generator.

        Args:
            model: The model's name, or a ModelSpec for a version, label or signature.
            inputs: As in ``predict``.
            outputs: Names of the outputs to return; all if empty.
            timeout_seconds: Timeout of the whole stream in seconds.

        Yields:
            The outputs of each part by name; the whole answer of a model that does not answer in parts.

        Raises:
            HeadraceError: There is no answer, or it ends early.
        """
        call = self._in_process_call()
        try:
            spec = ModelSpec(model) if isinstance(model, str) else model
            loaded = self.loaded(spec.name, spec.version, spec.label)
            found = signature_named(loaded.signatures, spec.signature)
            chosen = found.check_outputs(outputs) or found.output_names
            deadline = NO_DEADLINE if timeout_seconds is None else due(self._clock.now(), timeout_seconds)
            with closing(self.parts(loaded, found.check(inputs), deadline, call)) as parts:
                async for answer in parts:
                    yield answer.tensors(chosen)
        except BaseException as error:
            self.outcomes.failed(call, error)
            if self._forks == event_loop.NOT_STARTED:
                raise FailedPrecondition(event_loop.why_not(self._forks)) from error
            raise
        self.outcomes.answered(call)

    def predict_blocking(
        self,
        model: str | ModelSpec,
        inputs: Inputs,
        *,
        outputs: Iterable[str] = (),
        timeout_seconds: float | None = None,
    ) -> dict[str, Array]:
        """Answer one request from any thread but the serving thread; concurrent requests share batches.

        The arguments are those of ``predict``.

        Raises:
            HeadraceError: There is no answer.
        """
        if self._forks != event_loop.forks:
            raise FailedPrecondition(event_loop.why_not(self._forks))
        if threading.get_ident() == self._serving_thread:
            raise self._refused("predict_blocking would block the serving thread; await predict() there")
        spec = ModelSpec(model) if isinstance(model, str) else model
        chosen = tuple(outputs)
        answered = self._predict_in_this_thread(spec, inputs, chosen, timeout_seconds)
        if answered is not None:
            return answered
        asked = self.predict(spec, inputs, outputs=chosen, timeout_seconds=timeout_seconds)
        return run_in(self._loop, asked)

    def _predict_in_this_thread(
        self,
        spec: ModelSpec,
        inputs: Inputs,
        outputs: Iterable[str],
        timeout_seconds: float | None,
    ) -> dict[str, Array] | None:
        """Answer one request without the serving thread; return None if the serving thread must do it.

        It must if no version is ready, if the version has no ``callers``, if this thread already runs one of
        its calls, or if the version is swapped meanwhile.
        """
        find, which = self.manager.ready_now, (spec.name, spec.version, spec.label)
        loaded = find(*which)
        callers = loaded.callers if loaded is not None else None
        if loaded is None or callers is None or callers.works_here:
            if callers is None and loaded is not None and loaded.batcher.waits_for_itself:
                raise self._refused(f"{loaded.name} calls itself in the only thread that could answer")
            say_waiting()
            return None
        outcome = Outcome(Channel.IN_PROCESS) if self.outcomes.all_observed else None
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
        """Record the end of a blocking call that would hang, and return its error."""
        error = FailedPrecondition(why)
        self.outcomes.ended_in_thread(self._in_process_call().outcome, error, self._clock)
        return error

    def _in_process_call(self) -> InProcessCall:
        return InProcessCall(Outcome(Channel.IN_PROCESS) if self.outcomes.all_observed else None)
