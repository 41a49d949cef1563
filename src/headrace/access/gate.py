"""The gate: whoever asks passes it before anything else of his request is looked at."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING

from headrace.access.caller import NOBODY, Caller
from headrace.access.key_file import Keys
from headrace.access.keys import id_of, is_key
from headrace.access.meters import Meters
from headrace.access.verbs import HEALTH
from headrace.errors import HeadraceError, OverLimit, Unauthenticated

if TYPE_CHECKING:
    from headrace.access.tokens import Tokens

Pairs = Iterable[tuple[bytes, bytes]]

_REMEMBERED = 4096
"""Of how many headers it is known whose they are; a key may be written in many ways."""

_LOOK_SECONDS = 1.0
_BEARER = b"bearer "
_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
_WAY_OUT = "send `authorization: Bearer KEY` or `x-api-key: KEY`, once"


class Gate:
    """Says who asks, and whether he may. Serving thread only.

    Attributes:
        keys: The keys that are known; exchanged whole when their file changes.
        meters: Count what callers take.
        tokens: Says whose a token is; None where only keys let anybody in.
        calls: How many calls each caller had let in.
        refused: How many were refused here, by the name of the error.
    """

    def __init__(self, keys: Keys, opened: int = HEALTH, meters: Meters | None = None) -> None:
        """Stand before a server.

        Args:
            keys: The keys that are known.
            opened: The verbs for which nobody need say who he is.
            meters: Count what callers take; of this process alone if left out.
        """
        self.meters = meters or Meters()
        # By a digest with a secret of this process: how long it takes to look for one in a dictionary says
        # nothing of the keys that are in it.
        self._secrets = {name: blake2b(key=secrets.token_bytes(32), digest_size=16) for name in _CREDENTIALS}
        self._remembered: dict[bytes, Caller] = {}
        self.keys = keys
        self.tokens: Tokens | None = None
        self._closed = ~opened
        self._anybody = Caller(NOBODY, opened)
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter(Unauthenticated=0, PermissionDenied=0, OverLimit=0)

    @property
    def keys(self) -> Keys:
        """See above."""
        return self._keys

    @keys.setter
    def keys(self, keys: Keys) -> None:
        self._keys = keys
        self._remembered.clear()

    def admit(self, headers: Pairs, verbs: int) -> Caller:
        """Let a call in.

        Args:
            headers: Its headers, or its metadata; names in lower case.
            verbs: What it asks for permits one of them, as bits.

        Returns:
            Whose it is; to be given to ``leave`` when it has ended. Of which models and spaces is asked where
            these are known.

        Raises:
            Unauthenticated: Nobody knows who asks.
            PermissionDenied: He may do nothing like it.
            OverLimit: He has had what he may have for now.
        """
        if verbs and not verbs & self._closed:
            return self._anybody
        try:
            caller = self._identified(headers)
            if not caller.verbs & verbs:
                caller.check_verbs(verbs)
            if caller.limits is not None:
                self.meters.enter(caller.name, caller.limits)
        except HeadraceError as error:
            self.refused[type(error).__name__] += 1
            raise
        self.calls[caller.counted_as] += 1
        return caller

    def leave(self, caller: Caller) -> None:
        """A call has ended that was let in."""
        if caller.limits is not None:
            self.meters.leave(caller.name, caller.limits)

    def take_rows(self, caller: Caller, rows: int) -> None:
        """Count the rows of a prediction.

        Raises:
            OverLimit: He has had what he may have for now.
        """
        if caller.limits is None:
            return
        try:
            self.meters.rows(caller.name, caller.limits, rows)
        except OverLimit:
            self.refused["OverLimit"] += 1
            raise

    def again(self, caller: Caller) -> float:
        """Check a caller again, because another message of its stream has come.

        Returns:
            How many seconds the message has to wait: a stream that is too fast is slowed down.

        Raises:
            Unauthenticated: His key or token is not valid any more.
        """
        self._check(caller)
        return 0.0 if caller.limits is None else self.meters.next_message(caller.name, caller.limits)

    async def in_turn(self, caller: Caller) -> None:
        """As ``again``, and wait; whose key ends while his stream waits gets no further, either."""
        seconds = self.again(caller)
        while seconds > 0:
            await asyncio.sleep(min(seconds, _LOOK_SECONDS))
            seconds -= _LOOK_SECONDS
            self._check(caller)

    def _check(self, caller: Caller) -> None:
        if caller is self._anybody:
            return
        if self.tokens is not None and self.tokens.has(caller):
            self.tokens.check(caller)
            return
        known = self.keys.get(caller.proof)
        if known is None or known.caller is not caller:
            raise Unauthenticated("the key that opened this stream is not known here any more; open another")
        self._check_time(caller)

    def _identified(self, headers: Pairs) -> Caller:
        name, value = credential(headers)
        digest = self._secrets[name].copy()
        digest.update(value)
        shown = digest.digest()
        caller = self._remembered.get(shown)
        if caller is None:
            if self.tokens is not None and (caller := self.tokens.remembered(shown)) is not None:
                return caller
            key = presented(name, value)
            public = id_of(key)
            if public is None and self.tokens is not None:
                return self.tokens.caller(key, shown)
            known = self._keys.get(public) if public is not None else None
            if known is None or not is_key(key, known.digest):
                raise Unauthenticated(f"the key is not known here; {_WAY_OUT}")
            caller = known.caller
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[shown] = caller
        if caller.expires is not None:
            self._check_time(caller)
        return caller

    @staticmethod
    def _check_time(caller: Caller) -> None:
        if caller.is_over():
            raise Unauthenticated(
                f"the key of {caller.name!r} ended at {caller.expires:%Y-%m-%dT%H:%M:%SZ}; "
                "ask the operator of this server for another one"
            )


def credential(headers: Pairs) -> tuple[bytes, bytes]:
    """The header that says who asks.

    Args:
        headers: Of a call, or its metadata; names in lower case.

    Raises:
        Unauthenticated: There is none, or several.
    """
    found = [pair for pair in headers if pair[0] in _CREDENTIALS]
    if len(found) == 1:
        return found[0]
    if not found:
        raise Unauthenticated(f"this server wants a key; {_WAY_OUT}")
    raise Unauthenticated(f"{len(found)} keys came; {_WAY_OUT}")


def presented(name: bytes, value: bytes) -> bytes:
    """The key that is in a header.

    Args:
        name: The header's name.
        value: Its value.

    Raises:
        Unauthenticated: It is written in a way that is not known here.
    """
    if name == b"x-api-key":
        return value
    if value[: len(_BEARER)].lower() != _BEARER:
        raise Unauthenticated(f"authorization: expected Bearer and a key; {_WAY_OUT}")
    return value[len(_BEARER) :].strip(b" ")
