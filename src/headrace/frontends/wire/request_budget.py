"""Limits on the cost of one request beyond its bytes, checked in advance and by every codec alike."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.frontends.calls import Account

if TYPE_CHECKING:
    from headrace.config import Limits
    from headrace.frontends.calls import Budget, GrpcCall, HttpCall

# Limit the length of names in requests: of signatures, inputs, features, datatypes, and request ids.


LONGEST_NAME_BYTES = 16 * 1024
"""Longest name accepted, short enough to be looked up, printed or echoed in one step."""


def check_name(size: int, field: str) -> None:
    """Check the length of a name before it is read.

    Args:
        size: Length in bytes or characters.
        field: Field that contains it, for the error.

    Raises:
        InvalidRequest: The name is too long.
    """
    if size > LONGEST_NAME_BYTES:
        raise InvalidRequest(
            f"expected a name of at most {LONGEST_NAME_BYTES} bytes, got {size}; send long texts as values",
            field=field,
        )


BYTES_A_VALUE = 2
"""Smallest size of a value in any form that is decoded value by value, such as ``0,``."""


class RequestBudget:
    """Adds up the cost of decoding one request, and refuses what exceeds the limits.

    Made for a request that is parsed; one that is recognised by its template needs none. Raw bytes (raw
    tensors, packed numbers) cost their size only, which is limited as they arrive. Everything else counts as
    values: numbers, texts, lists, members of objects, features, inputs, fields of a message. Values that are
    repeated or spread count once per repetition.

    As a context manager, it releases on exit the bytes held on an account of its own.

    Attributes:
        most_rows: Largest number of rows; the model's setting, once the model is known.
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
            limits: Limits on a request.
            account: Account of the request in the byte budget of all requests; None if it has none.
            budget: Byte budget of all requests, for a request without an account; None if nothing is counted.
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
    def of(cls, limits: Limits, call: HttpCall | GrpcCall) -> RequestBudget:
        """Return the budget of a call.

        Args:
            limits: Limits on a request.
            call: The call.
        """
        return cls(limits, call.counted(), call.budget)

    def __enter__(self) -> Self:
        """Return the budget itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the bytes held on an account of the budget's own."""
        if self._budget is not None and self._account is not None:
            self._budget.release(self._account.held)
            self._account = None

    def rows(self, count: int, field: str) -> None:
        """Check the number of rows, before anything is allocated for them.

        Args:
            count: Number of rows.
            field: Field that contains them, for the error.

        Raises:
            TooLarge: There are too many rows.
        """
        if count > self.most_rows:
            raise TooLarge(
                f"the request has {count} rows, and at most max_queue_rows = {self.most_rows} may wait; "
                "send fewer rows at once, or raise it in the model's [batching] settings",
                field=field,
            )

    def values(self, count: int, field: str) -> None:
        """Charge for values that are about to be decoded or made.

        Args:
            count: Number of values.
            field: Field that contains them, for the error.

        Raises:
            TooLarge: The request has too many values.
        """
        self._values += count
        if self._values > self._limits.max_values:
            raise TooLarge(
                f"expected at most {self._limits.max_values} values in a request (limits.max_values), got "
                f"{self._values} or more; send fewer rows at once, or numbers as raw tensors",
                field=field,
            )

    def expanded(self, size: int, field: str) -> None:
        """Charge for, and hold, bytes that are about to be allocated by repeating or spreading values.

        Args:
            size: Number of bytes, those of the texts included.
            field: Field that is repeated, for the error.

        Raises:
            TooLarge: All repeated values of the request would take too many bytes.
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
        """Count bytes of parsed values in the byte budget of all requests, until this one is settled.

        Raises:
            Overloaded: All requests together would hold too many bytes.
        """
        if self._account is not None:
            self._account.hold(size)
