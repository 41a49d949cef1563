"""gRPC's server reflection, from which tools such as grpcurl learn the services and messages.

It covers the private descriptor pool, which holds everything in ``proto/`` and nothing else that the process
has loaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from headrace.access.permissions import ANY
from headrace.base.errors import NotFound, Unsupported
from headrace.base.status_codes import codes
from headrace.frontends.calls import GrpcCall, GrpcMethod, StreamHandler
from headrace.frontends.wire import protos

if TYPE_CHECKING:
    from headrace.frontends.service import Service

PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
"""The versions of the protocol, which differ only in their names."""


def grpc_methods(service: Service) -> list[GrpcMethod]:
    """Return the methods of both versions.

    Args:
        service: Lists the gRPC services that are served.
    """
    return [
        GrpcMethod(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            stream=_answering(package, service),
            verbs=ANY,
        )
        for package in PACKAGES
    ]


def _answering(package: str, service: Service) -> StreamHandler:
    request_class = protos.message(f"{package}.ServerReflectionRequest")
    response_class = protos.message(f"{package}.ServerReflectionResponse")

    async def stream(messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes]:
        async for message in messages:
            request = protos.parse(request_class, message)
            answer = _answer(request, service)
            response = response_class(valid_host=request.host, original_request=request, **answer)
            written: bytes = response.SerializeToString()
            yield written

    return stream


def _answer(request: protos.Message, service: Service) -> dict[str, object]:
    asked = request.WhichOneof("message_request")
    try:
        if asked == "list_services":
            services = [{"name": name} for name in service.services]
            return {"list_services_response": {"service": services}}
        if asked == "file_by_filename":
            file = protos.POOL.FindFileByName(request.file_by_filename)
        elif asked == "file_containing_symbol":
            file = _file_of(request.file_containing_symbol)
        else:
            return _error(Unsupported("proto3 messages have no extensions"))
    except KeyError:
        return _error(NotFound(f"{asked}: {getattr(request, str(asked))!r:.200} does not exist"))
    serialized = [one.serialized_pb for one in _with_imports(file, set())]
    return {"file_descriptor_response": {"file_descriptor_proto": serialized}}


def _file_of(symbol: str) -> protos.Message:
    try:
        return protos.POOL.FindFileContainingSymbol(symbol)
    except KeyError:  # some versions of protobuf find methods and fields only by their service or message
        return protos.POOL.FindFileContainingSymbol(symbol.rpartition(".")[0])


def _with_imports(file: protos.Message, seen: set[str]) -> Iterator[protos.Message]:
    seen.add(file.name)
    yield file
    for imported in file.dependencies:
        if imported.name not in seen:
            yield from _with_imports(imported, seen)


def _error(error: NotFound | Unsupported) -> dict[str, object]:
    return {"error_response": {"error_code": codes(error).grpc, "error_message": error.message}}
