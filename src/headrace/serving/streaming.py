"""Answers in parts, as the engine gives them: a part of ``Engine``, which inherits it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import closing
from typing import Protocol

from headrace.base import event_loop
from headrace.base.clock import LoopClock
from headrace.base.errors import FailedPrecondition
from headrace.base.tensors import Array
from headrace.batching.part_streams import OnePart, PartStream
from headrace.batching.request import NO_DEADLINE, Answer, due
from headrace.model.data_frames import Inputs
from headrace.model.servable import CheckedInputs, signature_named
from headrace.serving.loaded_version import LoadedVersion
from headrace.serving.model_spec import ModelSpec
from headrace.telemetry.outcomes import Call, InProcessCall, Outcomes


class _Engine(Protocol):
    """The parts of an ``Engine`` that streams need."""

    outcomes: Outcomes
    _clock: LoopClock
    _forks: int

    def loaded(self, model: str, version: int | None = None, label: str | None = None) -> LoadedVersion: ...

    def answer(
        self,
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> asyncio.Future[Answer]: ...

    def parts(
        self,
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> PartStream | OnePart: ...

    def _in_process_call(self) -> InProcessCall: ...


class Streaming:
    """The methods of ``Engine`` that answer in parts."""

    def parts(
        self: _Engine,
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
        ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        call.outcome.handed_to(loaded.origin, ended)
        stream = loaded.streams.open(inputs, deadline, call)
        stream.ended = ended
        return stream

    async def stream(
        self: _Engine,
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
