"""The public client: predictions of a server over REST, from arrays, lists or data frames."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from headrace.base import event_loop
from headrace.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    InvalidRequest,
    ModelError,
    Refused,
    Unavailable,
    shown,
)
from headrace.base.status_codes import CODES
from headrace.base.tensors import BY_DTYPE, Array
from headrace.client.oip_rest import (
    LARGEST_METADATA_BYTES,
    Input,
    answered,
    message,
    model_path,
    packed,
    read_metadata,
)
from headrace.client.rest import Reply, RestClient, TimedOut, read_address, token_of, wait_seconds
from headrace.model.casting import typed
from headrace.model.data_frames import Inputs, named_inputs, with_nones
from headrace.model.servable import Signature, TensorSpec

_MOST_ANSWER_BYTES = 2**30
_LONGEST_SECONDS = 86_400.0
_MODELS_KEPT = 256
_VERSIONS_KEPT = 8
_NO_SERVER_ERROR = 500
_IN_JSON = frozenset((float, int, str, type(None)))


class _Model(NamedTuple):
    """A model of the server.

    Attributes:
        signature: Its inputs.
        versions: The last versions that have answered and have these inputs.
    """

    signature: Signature
    versions: tuple[int, ...] = ()


class Client:
    """A client of one server. Thread-safe: concurrent calls use a connection each, which are kept."""

    def __init__(
        self, url: str, *, token: str = "", ca_file: str = "", timeout_seconds: float = 60.0
    ) -> None:
        """Prepare the client; nothing is connected yet.

        Args:
            url: Address of the server, ``http://HOST:PORT`` or ``https://HOST:PORT``; it may have a path.
            token: API key or access token; "" for none. It is sent unencrypted only to this machine.
            ca_file: File of trusted CA certificates; "" for those of the system.
            timeout_seconds: Timeout of calls that name none, in seconds.

        Raises:
            ConfigError: The address, the token or the file is wrong.
            InvalidRequest: The timeout is not a number of seconds.
        """
        self._seconds = _checked_seconds(timeout_seconds)
        token = token_of(token, "token") if token else ""
        self._rest = RestClient(read_address(url), token, ca_file, _refusal)
        self._models: dict[str, _Model] = {}
        self._is_closed = False
        self._forks = event_loop.forks

    def predict(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: int | None = None,
        outputs: Iterable[str] = (),
        timeout_seconds: float | None = None,
    ) -> dict[str, Array]:
        """Answer one request.

        The model's inputs are requested before its first prediction, and again if a prediction is refused or
        another version answers.

        Args:
            model: The model's name.
            inputs: A data frame, or arrays or nested lists by input name, whose first axis is rows. None
                stands for a missing value.
            version: The version's number; None for the default one.
            outputs: Names of the outputs to return; all if empty.
            timeout_seconds: Timeout in seconds, also sent to the server; None for the client's.

        Returns:
            Arrays by output name, whose first axis is rows. Texts are ``bytes`` in arrays of objects.

        Raises:
            InvalidRequest: An input is wrong; ``field`` is its name.
            NotFound: There is no such model or version.
            DeadlineExceeded: There was no answer in time.
            Refused: The server cannot be reached, is busy, or refuses the caller for now.
            HeadraceError: There is no answer for another reason.
        """
        self._expect_usable()
        seconds = self._seconds if timeout_seconds is None else _checked_seconds(timeout_seconds)
        deadline, path, chosen = time.monotonic() + seconds, model_path(model, version), tuple(outputs)
        known = self._models.get(path)
        used = known or self._described(path, deadline)
        try:
            number, answer = self._asked(path, used.signature, inputs, chosen, deadline)
        except InvalidRequest as error:
            if known is None:
                raise
            # The default version may have other inputs by now.
            used = self._described_after(error, path, deadline)
            if used.signature == known.signature:
                raise
            number, answer = self._asked(path, used.signature, inputs, chosen, deadline)
        signature = self._signature_of(number, path, used, deadline)
        if signature == used.signature:
            return answer
        # The inputs were converted to other datatypes than this version has.
        return self._asked(path, signature, inputs, chosen, deadline)[1]

    def close(self) -> None:
        """Close the connections; calls that wait in other threads are still answered."""
        self._is_closed = True
        self._rest.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _expect_usable(self) -> None:
        if self._is_closed:
            raise FailedPrecondition("the client has been closed; make another one")
        if self._forks != event_loop.forks:  # both processes would use the same connections
            raise FailedPrecondition("the client was made before this process was forked; make one here")

    def _described(self, path: str, deadline: float) -> _Model:
        inputs, _ = read_metadata(self._ask(path, b"", {}, deadline, LARGEST_METADATA_BYTES).body)
        if not inputs:
            raise ModelError("the server describes a model without inputs")
        if len(self._models) >= _MODELS_KEPT:
            self._models.clear()
        described = self._models[path] = _Model(Signature("", inputs, ()))
        return described

    def _described_after(self, error: InvalidRequest, path: str, deadline: float) -> _Model:
        """Describe a model again, or raise the error if the server cannot answer now."""
        try:
            return self._described(path, deadline)
        except (Refused, DeadlineExceeded):
            raise error from None

    def _signature_of(self, number: int | None, path: str, used: _Model, deadline: float) -> Signature:
        """Return the signature of the version that has answered; a new version's is requested."""
        if number is None or number in used.versions:
            return used.signature
        signature = self._described(path, deadline).signature if used.versions else used.signature
        versions = used.versions if signature == used.signature else ()
        self._models[path] = _Model(signature, (*versions, number)[-_VERSIONS_KEPT:])
        return signature

    def _asked(
        self, path: str, signature: Signature, inputs: Inputs, outputs: Sequence[str], deadline: float
    ) -> tuple[int | None, dict[str, Array]]:
        named = named_inputs(inputs, signature.inputs)
        signature.check_names(named)
        headers, body = message([_sent(spec, named[spec.name]) for spec in signature.inputs], outputs)
        try:
            reply = self._ask(f"{path}/infer", body, headers, deadline, _MOST_ANSWER_BYTES)
        except InvalidRequest as error:
            raise _of_input(error, signature.input_names) from None
        return answered(reply)

    def _ask(
        self, path: str, body: bytes, headers: Mapping[str, str], deadline: float, most_bytes: int
    ) -> Reply:
        seconds = deadline - time.monotonic()
        told = {**headers, "X-Request-Timeout-Ms": str(max(1, round(seconds * 1000)))}
        try:
            return self._rest.ask(path, body, told, seconds, most_bytes)
        except TimedOut as error:
            raise DeadlineExceeded(
                "the server did not answer in time; allow more by timeout_seconds, or send less"
            ) from error


def _checked_seconds(seconds: float) -> float:
    try:
        is_valid = 0 < seconds <= _LONGEST_SECONDS  # not for NaN
    except TypeError:
        is_valid = False
    if not is_valid:
        raise InvalidRequest(
            f"expected seconds above 0, at most {_LONGEST_SECONDS:g}, got {seconds!r:.40}",
            field="timeout_seconds",
        )
    return seconds


def _sent(spec: TensorSpec, value: object) -> Input:
    """Return an input in binary form, or in JSON if values may be missing, which the server replaces."""
    try:
        return packed(spec.name, typed(spec, value))
    except InvalidRequest:
        value = with_nones(value, 1 + len(spec.shape))
        if not isinstance(value, list | tuple) or not value:
            raise
    try:
        rows = _plain(spec, value)
        if not spec.shape and rows is not value:  # there may be lists of one value each
            rows = [row[0] if isinstance(row, list | tuple) and len(row) == 1 else row for row in rows]
        described = {
            "name": spec.name,
            "datatype": BY_DTYPE[spec.dtype].oip,
            "shape": [len(rows), *_row_shape(spec, rows[0])],
            "data": rows,
        }
        return Input(json.dumps(described, allow_nan=False).encode(), b"")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"expected {spec}: {error}; beside missing values (None) send only texts and finite numbers",
            field=spec.name,
        ) from error


def _row_shape(spec: TensorSpec, row: Any) -> list[int]:
    """Return the shape of rows in JSON, in which open axes have the sizes of the first row."""
    sizes = []
    for size in spec.shape:
        is_list = isinstance(row, list | tuple) and len(row) > 0
        sizes.append(size if size is not None else len(row) if is_list else 1)
        row = row[0] if is_list else None
    return sizes


def _plain(spec: TensorSpec, value: Any) -> Any:
    """Return values as JSON expresses them for an input; an error is a TypeError or ValueError."""
    # tolist() would turn times in nanoseconds into integers.
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind not in "mM":
        value = value.tolist()
    if isinstance(value, list | tuple):
        return value if _IN_JSON.issuperset(map(type, value)) else [_plain(spec, one) for one in value]
    if isinstance(value, bool) and spec.dtype.kind in "iuf":
        return int(value)
    if isinstance(value, bytes):
        return value.decode()
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"got {type(value).__name__}")


def _of_input(error: InvalidRequest, names: Iterable[str]) -> InvalidRequest:
    """Return the error with the field that its message begins with, if that is an input."""
    for name in names:
        for start in (f"{name}: ", f"{name}.data: "):
            if error.message.startswith(start):
                return type(error)(error.message.removeprefix(start), field=name)
    return error


def _refusal(status: int, headers: http.client.HTTPMessage, body: bytes) -> HeadraceError:
    """Return the error of the same kind as the server's."""
    try:
        said: str = msgspec.json.decode(body, type=dict[str, str])["error"]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        said = f"the server answered {status}: {shown(body.decode(errors='replace'))}"
        if "Location" in headers:
            said += f"; the client follows no redirects: give it the url of {shown(headers['Location'])}"
    kind = _KINDS.get(status) or (FailedPrecondition if status < _NO_SERVER_ERROR else ModelError)
    if issubclass(kind, Refused):
        return kind(said, retry_after_seconds=wait_seconds(headers))
    return kind(said)


_KINDS: dict[int, type[HeadraceError]] = {
    **{one.http: kind for kind, one in reversed(CODES.items())},  # of several kinds, the first
    502: Unavailable,  # a balancer
    503: Unavailable,
}
