"""The gate: it admits or refuses each call by its headers, before the body is read."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING

from headrace.access.caller import NOBODY, Caller
from headrace.access.keys import Keys, id_of, is_key
from headrace.access.permissions import HEALTH
from headrace.access.shared_meters import Meters
from headrace.base.errors import HeadraceError, OverLimit, Unauthenticated

if TYPE_CHECKING:
    from headrace.access.tokens import Tokens

Pairs = Iterable[tuple[bytes, bytes]]

_REMEMBERED = 4096
"""Maximum number of cached credentials; a key may be written in many ways."""

_LOOK_SECONDS = 1.0
_BEARER = b"bearer "
_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
_WAY_OUT = "send `authorization: Bearer KEY` or `x-api-key: KEY`, once"


class Gate:
    """Identifies callers, and checks what they may do. Serving thread only.

    Attributes:
        keys: Known keys, replaced as a whole when their file changes.
        meters: Counts of what callers take.
        tokens: Verifier of tokens; None if only keys are accepted.
        calls: Number of calls admitted with credentials, by the caller's name in metrics.
        refused: Number of calls refused here, by the name of the error.
    """

    def __init__(self, keys: Keys, opened: int = HEALTH, meters: Meters | None = None) -> None:
        """Start with some keys.

        Args:
            keys: Known keys.
            opened: Verbs that need no credentials.
            meters: Counts of what callers take; of this process alone if omitted.
        """
        self.meters = meters or Meters()
        # Cached by a digest keyed with a secret of this process, so that the time of a look-up tells nothing
        # about the keys in the cache.
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
        """Known keys, replaced as a whole when their file changes."""
        return self._keys

    @keys.setter
    def keys(self, keys: Keys) -> None:
        self._keys = keys
        self._remembered.clear()

    def admit(self, headers: Pairs, verbs: int) -> Caller:
        """Admit a call.

        Args:
            headers: HTTP headers or gRPC metadata; names in lower case.
            verbs: Verbs as bits, any of which suffices for the call.

        Returns:
            The caller, to be passed to ``leave`` when the call has ended. Models and spaces are checked where
            they are known.

        Raises:
            Unauthenticated: The caller cannot be identified.
            PermissionDenied: The caller has none of the verbs.
            OverLimit: The caller has reached a limit.
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
        """Count the end of a call that was admitted."""
        if caller.limits is not None:
            self.meters.leave(caller.name, caller.limits)

    def take_rows(self, caller: Caller, rows: int) -> None:
        """Count the rows of a prediction.

        Raises:
            OverLimit: The caller has reached its limit.
        """
        if caller.limits is None:
            return
        try:
            self.meters.rows(caller.name, caller.limits, rows)
        except OverLimit:
            self.refused["OverLimit"] += 1
            raise

    def again(self, caller: Caller) -> float:
        """Check a caller again, for a further message of its stream.

        Returns:
            Seconds that the message must wait: a stream that is too fast is slowed down.

        Raises:
            Unauthenticated: The key or token is not valid any more.
        """
        self._check(caller)
        return 0.0 if caller.limits is None else self.meters.next_message(caller.name, caller.limits)

    async def in_turn(self, caller: Caller) -> None:
        """Check a caller like ``again``, and wait; meanwhile, check each second that it is still valid."""
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
            raise Unauthenticated(
                "the key that opened this stream was changed or removed; open another stream"
            )
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
                raise Unauthenticated(f"unknown key; {_WAY_OUT}")
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
                f"the key of {caller.name!r} expired at {caller.expires:%Y-%m-%dT%H:%M:%SZ}; "
                "ask the operator of this server for another key"
            )


def credential(headers: Pairs) -> tuple[bytes, bytes]:
    """Return the header that contains the credentials.

    Args:
        headers: HTTP headers or gRPC metadata; names in lower case.

    Raises:
        Unauthenticated: There is none, or more than one.
    """
    found = [pair for pair in headers if pair[0] in _CREDENTIALS]
    if len(found) == 1:
        return found[0]
    if not found:
        raise Unauthenticated(f"this server requires a key, or a token if it accepts them; {_WAY_OUT}")
    raise Unauthenticated(f"expected one key, got {len(found)}; {_WAY_OUT}")


def presented(name: bytes, value: bytes) -> bytes:
    """Return the key or token in a header.

    Args:
        name: Name of the header.
        value: Value of the header.

    Raises:
        Unauthenticated: The header has an unsupported form.
    """
    if name == b"x-api-key":
        return value
    if value[: len(_BEARER)].lower() != _BEARER:
        raise Unauthenticated(f"authorization: expected Bearer and a key or token; {_WAY_OUT}")
    return value[len(_BEARER) :].strip(b" ")
