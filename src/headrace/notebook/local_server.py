"""A server in a thread of this process, for notebooks and scripts."""

from __future__ import annotations

import asyncio
import atexit
import re
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import uvloop

from headrace.base import event_loop
from headrace.base.addresses import bracketed
from headrace.base.errors import ConfigError, FailedPrecondition, LoadError, listed
from headrace.base.event_loop import run_in
from headrace.base.tensors import Array
from headrace.cli.announcement import described
from headrace.cli.temporary_files import draft_directory
from headrace.config import ServerConfig, with_flags
from headrace.config.checks import DAY
from headrace.model.data_frames import Inputs
from headrace.notebook.object_files import Found, find
from headrace.server.server import Server
from headrace.serving.engine import ModelSpec

if TYPE_CHECKING:
    from headrace.lifecycle.version_states import VersionStatus


def serve(
    model: object,
    *,
    name: str = "",
    host: str = "127.0.0.1",
    http_port: int = 0,
    grpc_port: int = 0,
    allow_code: bool = False,
) -> LocalServer:
    """Serve a model over REST and gRPC from a thread of this process; return once it is ready.

    Each call starts another server. A running event loop, such as that of a notebook, is not used.

    Args:
        model: A model of scikit-learn, LightGBM, XGBoost, CatBoost or Keras, an ``onnx.ModelProto``, or a
            ``torch.export.ExportedProgram``. Or a function or class with the annotations of an endpoint. Or
            the path of a model's file, of a directory of models or of an ``app.py``. An object is saved into
            a temporary directory, so later changes of it have no effect.
        name: The model's name; by default that of the function or file, otherwise ``model``.
        host: The address to listen on.
        http_port: The port of REST; 0 for any free one.
        grpc_port: The port of gRPC; 0 for any free one.
        allow_code: Whether files at a path may contain code; an object and an ``app.py`` always may.

    Raises:
        ConfigError: The model is of no known kind, or another argument is wrong.
        LoadError: The model cannot be saved or loaded; of several models, none can be loaded.
    """
    with ExitStack() as undo:
        found = find(model, name, draft_directory(undo), undo)
        config = with_flags(
            ServerConfig(host=host, http_port=http_port, grpc_port=grpc_port, models=dict(found.entries)),
            allow_code=allow_code or found.is_own_code,
            poll_seconds=0.0 if found.is_fixed else None,
        )
        server = LocalServer(found, config, undo)
        undo.pop_all()
    return server


class LocalServer:
    """A running server; ``with`` stops it at the end, and so does the end of the process.

    Attributes:
        url: Address of REST.
        grpc_address: Host and port of gRPC.
        models: The names of the models.
    """

    def __init__(self, found: Found, config: ServerConfig, undo: ExitStack) -> None:
        """Start a server, and wait until each model has been loaded or has failed.

        Args:
            found: The models.
            config: The settings.
            undo: Calls for the time after the server; the caller makes them if this raises.

        Raises:
            ConfigError: A port is not available.
            LoadError: No model could be loaded.
        """
        self._forks, self._is_exit = event_loop.forks, False
        self._lock, self._stopped = threading.RLock(), threading.Event()
        undo.callback(self._stopped.set)
        self._loop = _loop_in_thread(undo)
        self._server = Server(found.directory, config)
        run_in(self._loop, _start(self._server))
        undo.callback(self._end)
        self.models = run_in(self._loop, _ready(self._server))
        self.url, self.grpc_address = _addresses(self._server)
        self._undo = undo.pop_all()
        atexit.register(self._exit)

    def predict(
        self,
        inputs: Inputs,
        *,
        model: str | ModelSpec = "",
        outputs: Iterable[str] = (),
        timeout_seconds: float | None = None,
    ) -> dict[str, Array]:
        """Answer one request in this process, without the network.

        Args:
            inputs: A data frame, or arrays or lists by input name, whose first axis is rows.
            model: The model; may be left out if there is only one.
            outputs: Names of the outputs to return; all if empty.
            timeout_seconds: Timeout in seconds.

        Returns:
            Arrays by output name; the first axis is rows.

        Raises:
            HeadraceError: There is no answer.
        """
        if not model and len(self.models) != 1:
            raise ConfigError(f"model: expected one of {listed(self.models)}, got none")
        self._expect_running()
        return self._server.engine.predict_blocking(
            model or self.models[0], inputs, outputs=outputs, timeout_seconds=timeout_seconds
        )

    def wait(self) -> None:
        """Serve until ``stop`` is called elsewhere, or an interrupt (Ctrl-C) comes; then stop."""
        with suppress(KeyboardInterrupt):
            self._stopped.wait()
        self.stop()

    def stop(self) -> None:
        """Answer accepted requests, unload the models and free the ports; a second call does nothing.

        Raises:
            FailedPrecondition: A served function called it, and would have to wait for itself.
        """
        if self._forks != event_loop.forks:
            return  # the server runs in the parent process
        self._expect_other_thread()
        with self._lock:
            atexit.unregister(self._exit)
            self._undo.close()

    def _exit(self) -> None:
        self._is_exit = True
        self.stop()

    def _end(self) -> None:
        run_in(self._loop, _leave(self._server) if self._is_exit else _stop(self._server))

    def _expect_other_thread(self) -> None:
        """Check that the running thread computes no answer of this server."""
        manager = self._server.engine.manager
        for name in manager.models():
            loaded = manager.ready_now(name)
            if loaded is not None and loaded.is_this_thread():
                raise FailedPrecondition(
                    f"stop: {name} calls it, and would wait for its own answer; call it outside of {name}"
                )

    def _expect_running(self) -> None:
        if self._stopped.is_set():
            raise FailedPrecondition("the server has been stopped; call headrace.serve again")

    def __enter__(self) -> Self:
        """Return the server, which runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def __repr__(self) -> str:
        """Return the addresses, the models with their inputs, and a command to try."""
        if self._stopped.is_set() or self._forks != event_loop.forks:
            return f"headrace server of {', '.join(self.models)}, stopped"
        return f"headrace serves {', '.join(self.models)}\n{run_in(self._loop, _described(self._server))}"


def _loop_in_thread(undo: ExitStack) -> asyncio.AbstractEventLoop:
    """Run an event loop in a new thread, until ``undo``."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="headrace", daemon=True)
    undo.callback(loop.close)
    undo.callback(thread.join)
    undo.callback(loop.call_soon_threadsafe, loop.stop)
    thread.start()
    return loop


async def _start(server: Server) -> None:
    """Start a server.

    Raises:
        ConfigError: A port is not available.
    """
    try:
        await server.start()
    except ConfigError as error:
        await server.engine.close()
        raise type(error)(_in_python(error.message)) from error
    except BaseException:
        await server.engine.close()
        raise


def _in_python(message: str) -> str:
    """Name arguments instead of the options of the command line."""
    flag = re.compile("--(host|http-port|grpc-port)( N)?")
    return flag.sub(lambda found: found[1].replace("-", "_") + ("=N" if found[2] else ""), message)


async def _ready(server: Server) -> tuple[str, ...]:
    """Wait until each model has been loaded or has failed, and return their names.

    Raises:
        LoadError: No model could be loaded.
    """
    await server.engine.settle(DAY)
    manager = server.engine.manager
    names = tuple(manager.models())
    if all(manager.ready_now(name) is None for name in names):
        problems = [f"{name}: {_problem(manager.status(name))}" for name in names]
        problems += [f"{name}: {why}" for name, why in manager.unusable.items()]
        raise LoadError("; ".join(problems) or "the directory has no models")
    return names


def _problem(statuses: list[VersionStatus]) -> str:
    return "; ".join(one.reason or one.error for one in statuses) or "it has no versions"


async def _described(server: Server) -> str:
    return described(server)


async def _stop(server: Server) -> None:
    await server.stop(lead=False)


async def _leave(server: Server) -> None:
    """Answer accepted requests; models are unloaded only if that is quick, as the process ends anyway.

    Python 3.12 and later start no thread at the end of a process, and closing a model takes one.
    """
    server.drain()
    await server.finish(time.monotonic())


def _addresses(server: Server) -> tuple[str, str]:
    (host, port), (grpc_host, grpc_port) = server.http_address, server.grpc_address
    return f"http://{bracketed(host)}:{port}", f"{bracketed(grpc_host)}:{grpc_port}"
