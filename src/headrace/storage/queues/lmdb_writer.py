"""Group commit: changes that several threads of a process request at a time share one transaction.

The first thread to take the lock commits; requests that arrive while it waits for the file join its
transaction. A commit waits for the disk twice, so four publishing threads wait about as long as one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

from headrace.base.errors import HeadraceError, Unavailable
from headrace.storage.lmdb_environment import LmdbFile, Transaction

_ResultT = TypeVar("_ResultT")

Change = Callable[[Transaction], _ResultT]
"""A function to run in a transaction. It raises HeadraceErrors only before it has changed anything."""


class _Ticket(Generic[_ResultT]):
    """A change that a thread waits for."""

    __slots__ = ("change", "error", "is_settled", "result")

    def __init__(self, change: Change[_ResultT]) -> None:
        self.change = change
        self.is_settled = False
        self.error: Exception | None = None
        self.result: _ResultT | None = None

    def settle(self, result: _ResultT | None, error: Exception | None) -> None:
        self.result, self.error, self.is_settled = result, error, True


class LmdbWriter:
    """Commits the changes requested by the threads of this process."""

    def __init__(self, file: LmdbFile, timeout_seconds: float) -> None:
        """Create a writer.

        Args:
            file: File to write to.
            timeout_seconds: Timeout of one change in seconds.
        """
        self._file = file
        self._timeout_seconds = timeout_seconds
        self._lock = Lock()
        self._turn = Lock()
        self._tickets: list[_Ticket[Any]] = []

    def run(self, change: Change[_ResultT]) -> _ResultT:
        """Make a change; once this returns, it is committed.

        Raises:
            Unavailable: Other writers held the lock until the timeout, or the file or the disk is full.
        """
        deadline = time.monotonic() + self._timeout_seconds
        ticket = _Ticket(change)
        with self._lock:
            self._tickets.append(ticket)
        if self._turn.acquire(timeout=self._timeout_seconds):
            try:
                if not ticket.is_settled:
                    self._commit_all(deadline)
            finally:
                self._turn.release()
                self._withdraw(ticket)
        else:
            self._withdraw(ticket)
        if not ticket.is_settled:
            raise Unavailable("timed out writing to the queue's file; the change may still be made")
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[return-value]  # it is what the change returned

    def _withdraw(self, ticket: _Ticket[Any]) -> None:
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def _commit_all(self, deadline: float) -> None:
        tickets: list[_Ticket[Any]] = []
        outcomes: list[tuple[Any, Exception | None]] = []
        try:
            with self._file.writing(deadline) as transaction:
                with self._lock:
                    tickets, self._tickets = self._tickets, []
                for ticket in tickets:
                    try:
                        outcomes.append((ticket.change(transaction), None))
                    except HeadraceError as error:
                        outcomes.append((None, error))
            for ticket, outcome in zip(tickets, outcomes, strict=True):
                ticket.settle(*outcome)
        except Unavailable as error:
            if not tickets:  # the write lock was not acquired in time
                raise
            if len(tickets) == 1:
                tickets[0].settle(None, error)
            for ticket in tickets if len(tickets) > 1 else ():
                self._commit_alone(ticket)  # one change may not fit in the file; the others still succeed
        finally:  # settle all tickets even after an interrupt, so that no thread waits for ever
            for ticket in tickets:
                if not ticket.is_settled:
                    ticket.settle(None, Unavailable("writing to the queue's file was interrupted"))

    def _commit_alone(self, ticket: _Ticket[Any]) -> None:
        try:
            with self._file.writing(time.monotonic() + self._timeout_seconds) as transaction:
                result = ticket.change(transaction)
            ticket.settle(result, None)
        except HeadraceError as error:
            ticket.settle(None, error)
