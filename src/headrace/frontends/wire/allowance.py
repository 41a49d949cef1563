"""What one request may cost beside its bytes: checked before it is paid, by every codec in the same way."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from headrace.errors import TooLarge
from headrace.frontends.calls import Account

if TYPE_CHECKING:
    from headrace.config import Limits
    from headrace.frontends.calls import Budget, GrpcCall, HttpCall

BYTES_A_VALUE = 2
"""The fewest bytes of a value in any form that is decoded value by value, such as ``0,``."""


class Allowance:
    """Adds up what decoding one request costs, and refuses what is beyond the limits.

    Made for a request that is really parsed; one that is recognised by its template needs none. What is raw
    bytes (raw tensors, packed numbers) costs its bytes only, which are limited as they arrive. Everything
    else is values: numbers, texts, lists, members of objects, features, inputs, fields of a message; and what
    is repeated or spread counts as often as it is repeated.

    Leaving it as a context manager gives back what it holds on no account but its own.

    Attributes:
        most_rows: How many rows it may have; the model's setting, once the model is known.
    """

    __slots__ = (
        "_account",
        "_budget",
        "_expanded",
        "_limits",
        "_values",
        "most_rows",
    )

    def __init__(
        self,
        limits: Limits,
        account: Account | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Start with nothing used.

        Args:
            limits: What a request may cost.
            account: What the request holds of the byte budget of all; None where it has no account.
            budget: The byte budget of all, for a request without an account; None where nothing is counted.
        """
        self.most_rows = sys.maxsize
        self._budget = None if account is not None else budget
        if self._budget is not None:
            account = Account(self._budget.hold_of_stream)
        self._limits = limits
        self._account = account
        self._values = 0
        self._expanded = 0

    @classmethod
    def of(cls, limits: Limits, call: HttpCall | GrpcCall) -> Allowance:
        """The allowance of a call.

        Args:
            limits: What a request may cost.
            call: The call.
        """
        return cls(limits, call.counted(), call.budget)

    def __enter__(self) -> Self:
        """Hold from now on."""
        return self

    def __exit__(self, *error: object) -> None:
        """The request is settled: what is held on an account of the allowance's own is given back."""
        if self._budget is not None and self._account is not None:
            self._budget.release(self._account.held)
            self._account = None

    def rows(self, count: int, field: str) -> None:
        """Refuse more rows than a request may have, before anything is made for them.

        Args:
            count: How many it has.
            field: Where they are, for the error.

        Raises:
            TooLarge: They are too many.
        """
        if count > self.most_rows:
            raise TooLarge(
                f"the request has {count} rows, and at most max_queue_rows = {self.most_rows} may wait; "
                "send fewer rows at once, or raise it in the model's [batching] settings",
                field=field,
            )

    def values(self, count: int, field: str) -> None:
        """Add values that are about to be decoded or made.

        Args:
            count: How many.
            field: Where they are, for the error.

        Raises:
            TooLarge: The request has more than it may have.
        """
        self._values += count
        if self._values > self._limits.max_values:
            raise TooLarge(
                f"expected at most {self._limits.max_values} values in a request (limits.max_values), got "
                f"{self._values} or more; send fewer rows at once, or numbers as raw tensors",
                field=field,
            )

    def expanded(self, size: int, field: str) -> None:
        """Add, and hold, bytes that are about to be made by repeating or spreading what came once.

        Args:
            size: How many bytes, the texts themselves included.
            field: What is repeated, for the error.

        Raises:
            TooLarge: All that the request repeats takes more than it may take.
            Overloaded: All requests together would hold too many bytes.
        """
        self._expanded += size
        if self._expanded > self._limits.max_expanded_bytes:
            raise TooLarge(
                f"what came once would take {self._expanded} bytes or more for all rows; expected at most "
                f"{self._limits.max_expanded_bytes} in a request (limits.max_expanded_bytes); send fewer "
                "rows at once",
                field=field,
            )
        self.hold(size)

    def hold(self, size: int) -> None:
        """Count bytes of what was parsed in the byte budget of all requests, until this one is settled.

        Raises:
            Overloaded: All requests together would hold too many.
        """
        if self._account is not None:
            self._account.hold(size)
