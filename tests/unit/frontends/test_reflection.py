"""gRPC's server reflection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from headrace.frontends import reflection
from headrace.frontends.calls import GrpcCall
from headrace.frontends.wire import protos
from tests.unit.frontends.oip.doubles import ServiceDouble, run

NOT_FOUND, UNIMPLEMENTED = 5, 12


def ask(package: str, **question: object) -> Any:
    path = f"/{package}.ServerReflection/ServerReflectionInfo"
    methods = {one.path: one for one in reflection.grpc_methods(ServiceDouble())}
    handler = methods[path].stream
    request = protos.message(f"{package}.ServerReflectionRequest")(host="h", **question)

    async def messages() -> AsyncIterator[bytes]:
        yield request.SerializeToString()

    async def answers() -> list[bytes]:
        assert handler is not None
        return [answer async for answer in handler(messages(), GrpcCall())]

    (answer,) = run(answers())
    response = protos.message(f"{package}.ServerReflectionResponse").FromString(answer)
    assert response.original_request == request
    return response


@pytest.mark.parametrize("package", reflection.PACKAGES)
def test_both_versions_list_the_services(package: str) -> None:
    response = ask(package, list_services="")
    assert [one.name for one in response.list_services_response.service] == list(protos.services())


@pytest.mark.parametrize("package", reflection.PACKAGES)
@pytest.mark.parametrize(
    "symbol",
    [
        "inference.GRPCInferenceService",
        "inference.GRPCInferenceService.ModelInfer",
        "inference.ModelInferRequest.InferInputTensor",
        "tensorflow.serving.PredictionService",
    ],
)
def test_the_file_of_a_symbol_comes_with_all_it_imports(package: str, symbol: str) -> None:
    response = ask(package, file_containing_symbol=symbol)
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in response.file_descriptor_response.file_descriptor_proto
    ]
    by_name = {file.name: file for file in files}
    assert all(imported in by_name for file in files for imported in file.dependency)
    assert symbol.startswith(f"{files[0].package}.")


def test_a_file_is_found_by_name() -> None:
    response = ask("grpc.reflection.v1", file_by_filename="health.proto")
    (data,) = response.file_descriptor_response.file_descriptor_proto
    assert descriptor_pb2.FileDescriptorProto.FromString(data).package == "grpc.health.v1"


@pytest.mark.parametrize("question", ["file_by_filename", "file_containing_symbol"])
def test_what_is_not_here_is_not_found(question: str) -> None:
    response = ask("grpc.reflection.v1", **{question: "nowhere.Nothing"})
    assert response.error_response.error_code == NOT_FOUND
    assert "nowhere.Nothing" in response.error_response.error_message


def test_questions_about_extensions_are_refused() -> None:
    response = ask("grpc.reflection.v1", all_extension_numbers_of_type="inference.ModelInferRequest")
    assert response.error_response.error_code == UNIMPLEMENTED
