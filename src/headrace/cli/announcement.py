"""The addresses and models of a server, as ``headrace serve`` and ``headrace.serve`` show them."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.addresses import bracketed
from headrace.base.terminal import counted, table
from headrace.cli import common

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.model.servable import Signature
    from headrace.server.server import Server
    from headrace.serving.loaded_version import LoadedVersion

_SETTLE_SECONDS = 10.0
"""How long the table waits for models to be tried."""
_LOOK_SECONDS = 1.0
"""Poll interval for models that were not tried yet when the table was printed."""
_STATE, _TRIED = 2, ("ready", "failed")

_Rows = list[tuple[str, ...]]


async def announce(serving: Server, directory: Path | None, seconds: float, *, as_json: bool) -> None:
    """Print the addresses of a server, and its models once they have been tried.

    Models that take longer than ten seconds get a line each when they have been tried, except in JSON.

    Args:
        serving: The server, started.
        directory: The directory of models.
        seconds: Duration of the start in seconds.
        as_json: Whether to print one JSON object.
    """
    if not as_json:
        _print_addresses(serving, directory, seconds)
    is_settled = await serving.engine.settle(_SETTLE_SECONDS)
    if as_json:
        said = {**_addresses(serving), "start_seconds": round(seconds, 3), **_models(serving)}
        common.print_json(said if serving.archive is None else {**said, **_spaces(serving.archive)})
        sys.stdout.flush()
        return
    rows, first = _model_rows(serving)
    _print_models(serving, rows, first)
    if not is_settled:
        await _print_later(serving, set(rows), is_tried_out=first is not None)


async def _print_later(serving: Server, printed: set[tuple[str, ...]], *, is_tried_out: bool) -> None:
    """Print a line for each version that was still loading, and the command to try unless it was printed.

    Args:
        serving: The server.
        printed: The lines of the table.
        is_tried_out: Whether the command has been printed.
    """
    is_settled = False
    while not is_settled:
        is_settled = await serving.engine.settle(_LOOK_SECONDS)
        rows, first = _model_rows(serving)
        tried = [row for row in rows if row[_STATE] in _TRIED and row not in printed]
        printed.update(tried)
        if tried:
            print(table(tried, indent="  "), flush=True)
        if first is not None and not is_tried_out:
            is_tried_out = True
            print(_try_it(serving, first), flush=True)


def _print_addresses(serving: Server, directory: Path | None, seconds: float) -> None:
    what = directory or ("the configured models" if serving.archive is None else "an archive")
    print(f"headrace serves {what}, {seconds:.2f} s after its start")
    print("\n".join(_address_lines(serving)))
    sys.stdout.flush()


def _address_lines(serving: Server) -> list[str]:
    host, port = serving.http_address
    grpc_host, grpc_port = serving.grpc_address
    lines = [
        f"  REST  {_scheme(serving)}://{bracketed(host)}:{port}",
        f"  gRPC  {bracketed(grpc_host)}:{grpc_port}",
    ]
    if serving.admin is not None:
        lines += [f"  administration  {address}" for address in _admin_addresses(serving)]
    return lines


def _addresses(serving: Server) -> dict[str, object]:
    def of(address: tuple[str, int]) -> dict[str, object]:
        return {"host": address[0], "port": address[1]}

    said: dict[str, object] = {"http": of(serving.http_address), "grpc": of(serving.grpc_address)}
    return said if serving.admin is None else {**said, "administration": _admin_addresses(serving)}


def _admin_addresses(serving: Server) -> list[str]:
    config, found = serving.engine.config, []
    if serving.admin is not None and serving.admin.address is not None:
        host, port = serving.admin.address
        found.append(f"{_scheme(serving)}://{bracketed(host)}:{port}")
    if config.admin_socket is not None:
        found.append(f"unix:{config.admin_socket}")
    return found


def _models(serving: Server) -> dict[str, object]:
    manager = serving.engine.manager
    said = [
        {
            "name": model,
            "default": manager.default_version(model),
            "versions": [
                {"version": one.version, "state": one.state.value, "error": one.error or None}
                for one in manager.status(model)
            ],
            "problems": list(manager.warnings(model)),
        }
        for model in manager.models()
    ]
    not_served = [{"name": name, "problem": why} for name, why in sorted(manager.unusable.items())]
    return {"models": said, "not_served": not_served}


def _spaces(archive: Archive) -> dict[str, object]:
    records = {space: archive.record(space) for space in archive.config.spaces}
    return {"spaces": [{"space": space, "default": one.default or None} for space, one in records.items()]}


def described(serving: Server) -> str:
    """Return the addresses and models of a server without an archive, and a command to try.

    Args:
        serving: The server, started; in its serving thread.
    """
    rows, first = _model_rows(serving)
    lines = [*_address_lines(serving), table(rows, indent="  ")]
    return "\n".join(lines if first is None else [*lines, _try_it(serving, first)])


def _print_models(serving: Server, rows: _Rows, first: LoadedVersion | None) -> None:
    if serving.archive is None or len(rows) > 1:
        print(table(rows, indent="  "))
    if not serving.engine.manager.models() and serving.archive is None:
        print("  no models yet: versions that appear in the directory are served as they come")
    if serving.archive is not None:
        _print_spaces(serving, serving.archive)
    if first is not None:
        print(_try_it(serving, first))
    print(end="", flush=True)


def _model_rows(serving: Server) -> tuple[_Rows, LoadedVersion | None]:
    """Return the rows of a table of models, and the first model that is served."""
    manager = serving.engine.manager
    rows: _Rows = [("model", "version", "state", "runtime", "inputs → outputs")]
    first: LoadedVersion | None = None
    for model in manager.models():
        default = manager.default_version(model)
        loaded = manager.get(model) if default is not None else None
        for status in manager.status(model):
            number = f"{status.version}{' (default)' if status.version == default else ''}"
            serves = loaded is not None and status.version == default
            runtime, shape = (
                (loaded.platform, _shape(loaded.signatures)) if serves and loaded else ("", status.error)
            )
            rows.append((model, number, status.state.value, runtime, shape))
        if not manager.status(model):
            rows.append((model, "", "not served", "", "; ".join(manager.warnings(model))))
        first = first or loaded
    return rows + [(name, "", "not served", "", why) for name, why in sorted(manager.unusable.items())], first


def _print_spaces(serving: Server, archive: Archive) -> None:
    rows = [("space", "version", "values", "made by")]
    for space, settings in archive.config.spaces.items():
        record = archive.record(space)
        version = record.version(record.default)
        numbers_made = "" if version is None else f"{version.dimension} of {version.dtype}"
        if version is not None and version.columns:
            numbers_made = counted(len(version.columns), "column")
        maker = settings.embedder or ("load, feed or put" if settings.is_table else "put")
        rows.append((space, str(record.default or ""), numbers_made, maker))
    print(table(rows, indent="  "))
    host, port = serving.http_address
    body = json.dumps({"keys": ["a key"]})
    address = f"{_scheme(serving)}://{bracketed(host)}:{port}/v1/archive/{rows[1][0]}:lookup"
    print(f"look up:\n  {_curl_command(serving)} -d '{body}' {address}")


def _shape(signatures: object) -> str:
    signature: Signature = next(iter(signatures.values()))  # type: ignore[attr-defined]
    inputs = ", ".join(str(spec) for spec in signature.inputs)
    return f"{inputs} → {', '.join(str(spec) for spec in signature.outputs)}"


def _try_it(serving: Server, loaded: LoadedVersion) -> str:
    return f"try it:\n  {_curl(serving, loaded)}"


def _curl(serving: Server, loaded: LoadedVersion) -> str:
    """Return a shell command that requests a prediction for one generated row."""
    signature = next(iter(loaded.signatures.values()))
    values = {
        spec.name: _sample(tuple(size or 1 for size in spec.shape), spec.dtype.kind)
        if signature.sample is None
        else _as_json(signature.sample[spec.name][:1].tolist()[0])
        for spec in signature.inputs
    }
    row: object = values if len(values) > 1 else next(iter(values.values()))
    host, port = serving.http_address
    server = f"{_scheme(serving)}://{bracketed(host)}:{port}"
    if loaded.streams is not None:
        path = f"/v2/models/{loaded.name}/generate_stream"
        return f"{_curl_command(serving)} -N -d '{json.dumps(values)}' {server}{path}"
    body = json.dumps({"instances": [row]})
    return f"{_curl_command(serving)} -d '{body}' {server}/v1/models/{loaded.name}:predict"


def _scheme(serving: Server) -> str:
    return "https" if serving.engine.config.tls.wanted else "http"


def _curl_command(serving: Server) -> str:
    """Return the beginning of a curl command, with the options for certificates."""
    tls = serving.engine.config.tls
    if not tls.wanted:
        return "curl"
    return "curl --cacert CA.pem" + (" --cert CLIENT.pem --key CLIENT.key" if tls.client_ca else "")


def _as_json(value: object) -> object:
    """Return a sample value as a JSON body has it: an image's bytes in base64."""
    if not isinstance(value, bytes):
        return value
    return value.decode() if value.isascii() else {"b64": base64.b64encode(value).decode()}


def _sample(shape: tuple[int, ...], kind: str) -> object:
    if not shape:
        return {"f": 1.0, "O": "text", "b": True}.get(kind, 1)
    return [_sample(shape[1:], kind) for _ in range(shape[0])]
