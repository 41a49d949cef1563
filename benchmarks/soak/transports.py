"""How each protocol's client asks: a question goes out, and a reply comes back or is known not to come."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import grpc
import httpx
from grpc import aio

from benchmarks.soak import wire
from benchmarks.soak.judging import Answered, Failed, Refused, Reply
from benchmarks.soak.subjects import Tensors

SILENT_SECONDS = 200.0
"""Nothing that is done to a server lasts as long, nor does a start on a crowded machine."""

CODES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_INFER = "/inference.GRPCInferenceService/"
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_REQUEST_ID = "x-request-id"
_CHANNEL = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 20_000),  # how long an attempt to connect may take
    ("grpc.max_receive_message_length", -1),
)


@dataclass(frozen=True)
class Asked:
    """What goes out.

    Attributes:
        identity: What the caller calls it; it must come back.
        model: Whom.
        version: Which version; None for the default one.
        tensors: The inputs.
        outputs: What the outputs look like; JSON says no dtypes.
        form: A number to choose by between forms of the same question.
    """

    identity: str
    model: str
    version: int | None
    tensors: Tensors
    outputs: Tensors
    form: int


class Transport(Protocol):
    """One client of one server by one protocol."""

    async def ask(self, asked: Asked) -> Reply:
        """Ask, and wait for the reply."""

    async def close(self) -> None:
        """Close its connections."""


# ---- REST ----


class Rest:
    """One connection of httpx, and one request at a time on it."""

    def __init__(self, port: int, protocol: str) -> None:
        """Connect when it is needed.

        Args:
            port: The server's.
            protocol: Which form of REST.
        """
        self._client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=SILENT_SECONDS,
            limits=httpx.Limits(max_connections=1),
            trust_env=False,
        )
        self._ask = {
            "TFS REST": self._tfs,
            "OIP REST": self._oip,
            "OIP REST binary": self._binary,
        }[protocol]

    async def ask(self, asked: Asked) -> Reply:
        """Ask, and wait for the reply."""
        try:
            return await self._ask(asked)
        except httpx.TimeoutException as error:
            return Failed("silent", f"{error!r} after {SILENT_SECONDS:g} s")
        except httpx.ConnectError as error:
            return Failed("unsent", repr(error))
        except httpx.TransportError as error:
            return Failed("lost", repr(error))

    async def close(self) -> None:
        """Close its connection."""
        await self._client.aclose()

    async def _tfs(self, asked: Asked) -> Reply:
        body = wire.tfs_json(asked.tensors, by_row=bool(asked.form % 2))
        path = wire.tfs_path(asked.model, asked.version)
        return await self._post(
            asked, path, body, {}, lambda got: wire.of_tfs_json(got.content, asked.outputs)
        )

    async def _oip(self, asked: Asked) -> Reply:
        body = wire.oip_json(asked.identity, asked.tensors)
        path = wire.oip_path(asked.model, asked.version)
        return await self._post(
            asked, path, body, {}, lambda got: wire.of_oip_json(got.content, asked.identity)
        )

    async def _binary(self, asked: Asked) -> Reply:
        head, body = wire.oip_binary(asked.identity, asked.tensors)
        name = "inference-header-content-length"

        def outputs(got: httpx.Response) -> dict[str, wire.Array]:
            return wire.of_oip_binary(got.content, int(got.headers[name]), asked.identity)

        return await self._post(
            asked, wire.oip_path(asked.model, asked.version), body, {name: str(head)}, outputs
        )

    async def _post(
        self,
        asked: Asked,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        outputs: Callable[[httpx.Response], Tensors],
    ) -> Reply:
        named = {_REQUEST_ID: asked.identity, "content-type": "application/json", **headers}
        got = await self._client.post(path, content=body, headers=named)
        _check_identity(got.headers.get(_REQUEST_ID), asked)
        if got.status_code == httpx.codes.OK:
            return Answered(outputs(got))
        return Refused(CODES.get(got.status_code, str(got.status_code)), error_of(got.content))


def error_of(body: bytes) -> str:
    """What an answer in JSON says is wrong."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"no error in JSON: {body[:200]!r}"


def _check_identity(given: str | None, asked: Asked) -> None:
    if given != asked.identity:
        raise ValueError(f"the answer is to the request {given!r}, not to {asked.identity!r}")


# ---- gRPC ----


class Grpc:
    """One channel, and unary calls on it."""

    def __init__(self, port: int, protocol: str) -> None:
        """Connect when it is needed.

        Args:
            port: The server's.
            protocol: Whose messages.
        """
        self._channel = aio.insecure_channel(f"127.0.0.1:{port}", options=_CHANNEL)
        self._is_tfs = protocol == "TFS gRPC"
        self._call = self._channel.unary_unary(_PREDICT if self._is_tfs else f"{_INFER}ModelInfer")

    async def ask(self, asked: Asked) -> Reply:
        """Ask, and wait for the reply."""
        message = (
            wire.tfs_message(asked.model, asked.version, asked.tensors)
            if self._is_tfs
            else wire.oip_message(asked.identity, asked.model, asked.version, asked.tensors)
        )
        call = self._call(message, timeout=SILENT_SECONDS, metadata=((_REQUEST_ID, asked.identity),))
        try:
            answer = await call
        except aio.AioRpcError as error:
            return _grpc_failure(error, asked)
        _check_identity(_named(await call.trailing_metadata()), asked)
        if self._is_tfs:
            return Answered(wire.of_tfs_message(answer))
        return Answered(wire.of_oip_message(answer, asked.identity))

    async def close(self) -> None:
        """Close its connections."""
        await self._channel.close()


def _named(metadata: Any) -> str | None:
    return next((value for name, value in metadata or () if name == _REQUEST_ID), None)


def _grpc_failure(error: aio.AioRpcError, asked: Asked) -> Reply:
    """What the server says bears the request's name; what the client's library says does not."""
    code, text = error.code(), error.details() or ""
    named = _named(error.trailing_metadata()) or _named(error.initial_metadata())
    if named is not None:
        _check_identity(named, asked)
        return Refused(code.name, text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Failed("silent", f"{text} after {SILENT_SECONDS:g} s")
    if "failed to connect to all addresses" in text:
        return Failed("unsent", text)
    return Failed("lost", f"{code.name}: {text}")


# ---- A stream ----


class Stream:
    """One ModelStreamInfer, on which several callers ask at the same time; opened anew when it has ended."""

    def __init__(self, port: int, _protocol: str) -> None:
        """Connect when it is needed.

        Args:
            port: The server's.
        """
        self._channel = aio.insecure_channel(f"127.0.0.1:{port}", options=_CHANNEL)
        self._method = self._channel.stream_stream(f"{_INFER}ModelStreamInfer")
        self._waiting: dict[str, tuple[Asked, asyncio.Future[Reply]]] = {}
        self._writing = asyncio.Lock()
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, asked: Asked) -> Reply:
        """Send a message, and wait for its answer."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        message = wire.oip_message(asked.identity, asked.model, asked.version, asked.tensors)
        try:
            async with asyncio.timeout(SILENT_SECONDS), self._writing:
                call = self._opened()
                self._waiting[asked.identity] = (asked, future)
                await call.write(message)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass  # The reader says how the stream has ended.
        except TimeoutError:
            return Failed("silent", f"the stream took nothing for {SILENT_SECONDS:g} s")
        try:
            return await asyncio.wait_for(future, SILENT_SECONDS)
        except TimeoutError:
            return Failed("silent", f"no answer on the stream for {SILENT_SECONDS:g} s")

    def _opened(self) -> Any:
        if self._call is None:
            self._call = self._method()
            self._reader = asyncio.create_task(self._read(self._call))
        return self._call

    async def close(self) -> None:
        """End the stream, and close its connection."""
        if self._call is not None and self._reader is not None:
            with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                await self._call.done_writing()
            await asyncio.wait([self._reader], timeout=SILENT_SECONDS)
        await self._channel.close()

    async def _read(self, call: Any) -> None:
        ending: Reply = Failed("lost", "the stream was closed")
        try:
            while (message := await call.read()) is not aio.EOF:
                self._take(wire.StreamResponse.FromString(message))
            ending = _stream_ending(await call.code(), await call.details() or "")
        except aio.AioRpcError as error:
            ending = _stream_ending(error.code(), error.details() or "")
        finally:
            # What is asked from now on goes to another stream; what was on this one is not answered any more.
            self._call = None
            waiting, self._waiting = self._waiting, {}
            for _, future in waiting.values():
                if not future.done():
                    future.set_result(ending)
            call.cancel()

    def _take(self, response: Any) -> None:
        identity = response.infer_response.id
        if identity not in self._waiting:
            raise ValueError(f"an answer to {identity!r} came, which nobody has asked on this stream")
        first = next(iter(self._waiting))
        asked, future = self._waiting.pop(identity)
        if future.done():
            return
        if identity != first:
            future.set_exception(ValueError(f"the answer to {identity} came before that to {first}"))
        elif response.error_message:
            future.set_result(Refused("", response.error_message))
        else:
            future.set_result(Answered(wire.of_response(response.infer_response, asked.identity)))


def _stream_ending(code: grpc.StatusCode, text: str) -> Reply:
    """How those fared who had no answer yet when their stream ended."""
    if "the server is stopping" in text or code is grpc.StatusCode.OK:
        return Refused("UNAVAILABLE", f"the stream ended: {text}")
    if "failed to connect to all addresses" in text:
        return Failed("unsent", text)
    # A write that finds the stream ended hides how it has ended: the library says this instead.
    how: Literal["lost", "torn"] = "torn" if text == "Internal error from Core" else "lost"
    return Failed(how, f"the stream ended with {code.name}: {text}")


TRANSPORTS: Mapping[str, Callable[[int, str], Transport]] = {
    "TFS REST": Rest,
    "OIP REST": Rest,
    "OIP REST binary": Rest,
    "TFS gRPC": Grpc,
    "OIP gRPC": Grpc,
    "OIP stream": Stream,
}
