"""Callers that keep their gRPC channels, with several calls in flight on each, and count by channel."""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple, Self

import grpc
import numpy as np

from tests.faults.still_serves import MODEL, Response, grpc_calls, infer_message
from tests.running_server import RunningServer

_SECONDS = 90.0


class Lost(NamedTuple):
    """A call without a right answer.

    Attributes:
        channel: On which channel.
        caller: Which of the channel's callers made it.
        answered: How many calls of that caller had been answered before.
        said: What it got.
    """

    channel: int
    caller: int
    answered: int
    said: str


class KeptChannels:
    """Channels with connections of their own, each asked by several threads, one call after the other.

    A call that finds no connection waits for one, as clients have it that shall outlive a server's restart.

    Attributes:
        many: How many channels.
        in_flight: How many calls each has in flight.
        counts: How many calls were answered well, by channel and caller.
        lost: The others.
    """

    def __init__(self, server: RunningServer, many: int, in_flight: int) -> None:
        """Ask nothing yet."""
        self.many, self.in_flight = many, in_flight
        self.counts = [[0] * in_flight for _ in range(many)]
        self.lost: list[Lost] = []
        self._server, self._ended = server, threading.Event()
        self._threads = [threading.Thread(target=self._keep, args=(number,)) for number in range(many)]

    def __enter__(self) -> Self:
        """Open all channels, and wait until each has been answered."""
        for thread in self._threads:
            thread.start()
        self.wait_for_answers(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(_SECONDS + 10)
        assert not any(thread.is_alive() for thread in self._threads), "a caller waits for ever"

    def wait_for_answers(self, each: int) -> None:
        """Wait until so many more calls of each channel have been answered."""
        before = self.answered
        self._server.wait_for(
            lambda: all(now >= then + each for now, then in zip(self.answered, before, strict=True)),
            "answers on each channel",
        )

    @property
    def answered(self) -> list[int]:
        """How many calls were answered well, by channel."""
        return [sum(one) for one in self.counts]

    @property
    def channels_that_lost(self) -> set[int]:
        """The channels with a call that was lost."""
        return {one.channel for one in self.lost}

    @property
    def times_of_loss(self) -> Counter[tuple[int, int]]:
        """At how many moments each caller lost calls: none was answered between those of one moment."""
        return Counter((channel, caller) for channel, caller, _ in {one[:3] for one in self.lost})

    def _keep(self, channel: int) -> None:
        with grpc_calls(self._server) as call:
            asking = [
                threading.Thread(target=self._ask, args=(call, channel, caller))
                for caller in range(self.in_flight)
            ]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()

    def _ask(self, call: grpc.UnaryUnaryMultiCallable, channel: int, caller: int) -> None:
        message, answered = infer_message(MODEL, 1.0), 0
        while not self._ended.is_set():
            try:
                response = Response.FromString(call(message, timeout=_SECONDS, wait_for_ready=True))
            except grpc.RpcError as error:
                said = f"{error.code().name}: {error.details()}"
                self.lost.append(Lost(channel, caller, answered, said))
            else:
                values = np.frombuffer(response.raw_output_contents[0], np.float32).tolist()
                if values == [2.0]:
                    answered += 1
                    self.counts[channel][caller] = answered
                else:
                    self.lost.append(Lost(channel, caller, answered, f"a wrong answer: {values}"))
