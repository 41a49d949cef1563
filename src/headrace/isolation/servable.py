"""A version in processes of its own, as a Servable: what is asked of it goes there, and so do its failures.

While it has no process, batches are refused at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headrace.config import IsolationPolicy, ModelConfig
from headrace.errors import Unavailable
from headrace.isolation.description import Setup
from headrace.isolation.messages import Kind, Note, read_bytes
from headrace.isolation.pool import Pool
from headrace.isolation.process import Retired
from headrace.isolation.replica import Recipe, Replica, Which, read_tensors, write_call
from headrace.isolation.restarts import Restarts
from headrace.isolation.slot import Limit, Slot
from headrace.runtimes.options import RuntimeOptions
from headrace.servable import DEFAULT_SIGNATURE, Servable
from headrace.tensors import Tensors

if TYPE_CHECKING:
    from headrace.ctr.interfaces import Contribution

ResultT = TypeVar("ResultT")

_LEAST_RETRY_SECONDS = 0.1


class IsolatedServable:
    """A version in processes of its own: one, or as many as ``batching.instance_processes`` says.

    One process is called by several threads at once. Of several, each computes one call at a time.

    Attributes:
        platform: The model's.
        signatures: The model's.
        takes_packed: Whether the model takes texts packed.
        metadata: The model's, if it has some.
        restarts: How often its processes were started again, by the reason why.
    """

    may_block = True
    """It may hang, so it must not be called in the serving thread."""

    def __init__(
        self,
        which: Which,
        options: RuntimeOptions,
        config: ModelConfig,
        *,
        warm: Callable[[Servable], object] = lambda servable: None,
    ) -> None:
        """Load a version in a new process, in a loader thread; ``start_others`` starts the other processes.

        Args:
            which: The version.
            options: As for a runtime.
            config: The model's settings.
            warm: Warms up each process but the first, which is warmed up as a Servable of this process is.

        Raises:
            LoadError: It cannot be loaded, or its process ended over it.
        """
        self._which = which
        recipe = _recipe(which, options, config, warm)
        restarts = Restarts(config.versions.load_retry_seconds)
        self.restarts: Mapping[str, int] = restarts.counts
        processes = config.batching.instance_processes
        self._replicas = [Replica(recipe, restarts, self._changed) for _ in range(processes or 1)]
        self._pool = None if processes is None else Pool(self._replicas)
        said, self.signatures = self._replicas[0].start()
        self.platform = said.platform
        self.takes_packed = said.takes_packed
        self.metadata: Mapping[str, str] = said.metadata
        if said.explains:
            self.explain = self._explain

    # --- what is asked of a Servable ---

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Answer a whole batch.

        Args:
            inputs: Every input, checked.
            signature: Which way to call it.

        Raises:
            ModelDied: The process ended over it.
            Unavailable: There is no process just now.
            HeadraceError: What the model said.
        """
        return self._call(partial(write_call, Kind.PREDICT, signature, inputs), read_tensors)

    def _explain(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> list[list[Contribution]]:
        """What each field adds to each row's logit, of a model that can tell."""
        # Only models that explain themselves need it.
        from headrace.ctr.interfaces import Contribution  # noqa: PLC0415

        said = self._call(partial(write_call, Kind.EXPLAIN, signature, inputs), _read_bytes)
        return msgspec.msgpack.decode(said, type=list[list[Contribution]])

    def close(self) -> None:
        """Let the model free what it holds, and end its processes."""
        for replica in self._replicas:
            replica.close()

    # --- what is told of it ---

    @property
    def trouble(self) -> str:
        """Why it does not answer now; "" while it does."""
        return "" if self.process_count else self._next_back().away

    @property
    def process_count(self) -> int:
        """How many of its processes answer now."""
        return sum(one.is_ready for one in self._replicas)

    @property
    def memory_bytes(self) -> int:
        """What its processes take of memory that nobody else has."""
        processes = [one.process for one in self._replicas]
        return sum(one.memory_bytes for one in processes if one is not None)

    def start_others(self) -> None:
        """Start the other processes one after another, and warm each up, in a loader thread.

        Raises:
            LoadError: One of them could not be started or warmed up, or the one before it has ended.
        """
        for before, replica in zip(self._replicas, self._replicas[1:], strict=False):
            before.check()
            replica.start_warm()

    def serve(self) -> None:
        """From now on, replace each process when it ends or has grown too large.

        Raises:
            LoadError: One has ended already.
        """
        for replica in self._replicas:
            replica.serve()

    # --- calls ---

    def _call(self, write_it: Callable[[Slot], Note], read_it: Callable[[Slot, Note], ResultT]) -> ResultT:
        pool = self._pool
        if pool is None:
            with suppress(Retired):
                return self._replicas[0].call(write_it, read_it)
            raise self._unavailable()
        while (replica := pool.take()) is not None:
            try:
                with suppress(Retired):  # it has just ended: another one is asked
                    return replica.call(write_it, read_it)
            finally:
                pool.give_back(replica)
        raise self._unavailable()

    def _unavailable(self) -> Unavailable:
        which, replica = f"{self._which.model} version {self._which.version}", self._next_back()
        after = max(replica.back_at - time.monotonic(), 0.0) + replica.loaded_in
        return Unavailable(
            f"{which}: {replica.away}; try again", retry_after_seconds=max(after, _LEAST_RETRY_SECONDS)
        )

    def _next_back(self) -> Replica:
        return min(self._replicas, key=lambda one: one.back_at)

    def _changed(self) -> None:
        if self._pool is not None:
            self._pool.look()


def _recipe(
    which: Which, options: RuntimeOptions, config: ModelConfig, warm: Callable[[Servable], object]
) -> Recipe:
    policy = config.isolation
    return Recipe(
        which,
        msgspec.json.encode(_setup(which, options, policy)),
        policy,
        options.call,
        Limit(config.versions.load_timeout_seconds, "loading took longer than versions.load_timeout_seconds"),
        Limit(policy.timeout_seconds, "a batch took longer than isolation.timeout_seconds"),
        warm,
    )


def _setup(which: Which, options: RuntimeOptions, policy: IsolationPolicy) -> Setup:
    return Setup(
        path=str(which.path.absolute()),
        kind=options.kind,
        threads=options.threads,
        trusted=options.trusted,
        allow_code=options.allow_code,
        options=dict(options.options),
        signature=options.signature,
        checksums=None if options.checksums is None else dict(options.checksums),
        memory_bytes=policy.memory_bytes,
        log_level=logging.getLogger().getEffectiveLevel(),
        gently=options.threads
        == 1,  # a runtime's threads have the priority of the one that loads it, for good
    )


def _read_bytes(slot: Slot, note: Note) -> bytes:
    return read_bytes(slot.area, note)
