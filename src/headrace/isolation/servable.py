"""A Servable whose calls are computed in processes of its own, so that their failures stay there.

While none of its processes is ready, batches are refused at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from headrace.base.errors import Unavailable
from headrace.base.tensors import Tensors
from headrace.batching.cost import BatchCost
from headrace.config import IsolationPolicy, ModelConfig
from headrace.isolation.call_slot import Limit, Slot
from headrace.isolation.messages import Kind, Note
from headrace.isolation.model_description import Setup
from headrace.isolation.model_process import Retired
from headrace.isolation.replica import Recipe, Replica, Which, read_tensors, write_call
from headrace.isolation.replica_restarts import Restarts
from headrace.lifecycle.warmup import warm_up
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, takes_packed
from headrace.runtimes.options import RuntimeOptions

# Assign calls to the processes of a version, each of which computes one call at a time.


class Member(Protocol):
    """A member of the pool, which takes calls."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes calls."""


MemberT = TypeVar("MemberT", bound=Member)


class ProcessPool(Generic[MemberT]):
    """Gives each call exclusive use of a member. Thread-safe.

    The first idle member is taken, so that the same few stay warm under low load.
    """

    def __init__(self, members: Sequence[MemberT]) -> None:
        """Begin with all members idle.

        Args:
            members: The members that take calls.
        """
        self._members = members
        self._busy = [False] * len(members)
        self._changed = threading.Condition()

    def take(self) -> MemberT | None:
        """Wait for an idle member that is ready, and take it; ``give_back`` must follow.

        Each running call ends at its timeout at the latest, and its end wakes a waiting thread.

        Returns:
            The member; None if none is ready.
        """
        with self._changed:
            while True:
                ready = [number for number, one in enumerate(self._members) if one.is_ready]
                if not ready:
                    return None
                for number in ready:
                    if not self._busy[number]:
                        self._busy[number] = True
                        return self._members[number]
                self._changed.wait()

    def give_back(self, member: MemberT) -> None:
        """Return a member to the pool."""
        with self._changed:
            self._busy[self._members.index(member)] = False
            self._changed.notify()

    def look(self) -> None:
        """Wake the waiting threads after a member has become ready or unready."""
        with self._changed:
            self._changed.notify_all()


# Load a version into a process of its own, with the preparations needed in the server.


def load(which: Which, recorded_in: Path, options: RuntimeOptions, config: ModelConfig) -> IsolatedServable:
    """Load a version, in a loader thread.

    Args:
        which: The version.
        recorded_in: Version directory in which recorded requests are looked up.
        options: Options as for a runtime.
        config: The model's settings.

    Raises:
        LoadError: The version cannot be loaded, or its process ended meanwhile.
    """

    def warm(started: Servable) -> None:
        # Recorded requests may hold keys or images in place of the model's inputs.
        warm_up(started, config, None if config.changes_inputs else recorded_in, BatchCost())

    loaded = IsolatedServable(which, options, config, warm=warm)
    if takes_packed(loaded):
        options.share(_ready_to_pack)
    return loaded


def _ready_to_pack() -> None:
    """Compile the kernels that front ends use to pack texts, as loading a click model here would do."""
    from headrace.model import packed_kernels  # noqa: PLC0415

    packed_kernels.run_once()


ResultT = TypeVar("ResultT")

_LEAST_RETRY_SECONDS = 0.1


class IsolatedServable:
    """A version in one process, or in ``batching.instance_processes`` processes.

    Without ``instance_processes``, several threads call the process concurrently. With it, each process, even
    a single one, computes one call at a time.

    Attributes:
        platform: The model's platform.
        signatures: The model's signatures, by name.
        takes_packed: Whether the model takes packed texts.
        has_files: Whether users can put files beside the model.
        metadata: The model's metadata; empty if it has none.
        restarts: Number of process restarts by reason.
    """

    may_block = True
    """A call may hang, so the serving thread must not make it."""

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
            options: Options as for a runtime.
            config: The model's settings.
            warm: Warms up each process except the first one, which is warmed up like a Servable in the
                server.

        Raises:
            LoadError: The version cannot be loaded, or its process ended meanwhile.
        """
        self._which = which
        recipe = _recipe(which, options, config, warm)
        restarts = Restarts(config.versions.load_retry_seconds)
        self.restarts: Mapping[str, int] = restarts.counts
        processes = config.batching.instance_processes
        self._replicas = [Replica(recipe, restarts, self._changed) for _ in range(processes or 1)]
        self._pool = None if processes is None else ProcessPool(self._replicas)
        said, self.signatures = self._replicas[0].start()
        self.platform = said.platform
        self.takes_packed, self.has_files = said.takes_packed, said.has_files
        self.metadata: Mapping[str, str] = said.metadata

    # --- the Servable interface ---

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Compute a batch.

        Args:
            inputs: All inputs, checked.
            signature: Name of the signature.

        Raises:
            ModelDied: The process ended during the call.
            Unavailable: No process is ready.
            HeadraceError: The model raised this error.
        """
        return self._call(partial(write_call, Kind.PREDICT, signature, inputs), read_tensors)

    def close(self) -> None:
        """Close the model in all processes at once, and wait until each has ended or was killed."""
        with ThreadPoolExecutor(len(self._replicas), "isolation-close") as closing:
            list(closing.map(Replica.close, self._replicas))

    # --- state ---

    @property
    def trouble(self) -> str:
        """Why no process is ready; "" if one is."""
        return "" if self.process_count else self._next_back().away

    @property
    def process_count(self) -> int:
        """Number of ready processes."""
        return sum(one.is_ready for one in self._replicas)

    @property
    def memory_bytes(self) -> int:
        """Unshared resident memory of its processes in bytes."""
        processes = [one.process for one in self._replicas]
        return sum(one.memory_bytes for one in processes if one is not None)

    def start_others(self) -> None:
        """Start and warm up the other processes, one after another, in a loader thread.

        Raises:
            LoadError: A process could not be started or warmed up, or the one before it has ended.
        """
        for before, replica in zip(self._replicas, self._replicas[1:], strict=False):
            before.check()
            replica.start_warm()

    def serve(self) -> None:
        """Replace each process from now on when it ends or exceeds its memory limit.

        Raises:
            LoadError: A process has ended already.
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
                with suppress(Retired):  # it has just ended: try another one
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
        options.threads,
    )


def _setup(which: Which, options: RuntimeOptions, policy: IsolationPolicy) -> Setup:
    return Setup(
        path=str(which.path.absolute()),
        kind=options.kind,
        threads=options.threads,
        trusted=options.trusted,
        is_verified=options.is_verified,
        allow_code=options.allow_code,
        options=dict(options.options),
        signature=options.signature,
        checksums=None if options.checksums is None else dict(options.checksums),
        memory_bytes=policy.memory_bytes,
        log_level=logging.getLogger().getEffectiveLevel(),
        gently=options.threads == 1,  # a runtime's threads keep the priority of the loading thread
    )
