"""The private pool of messages."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.frontends.wire import protos


def test_another_client_may_hold_messages_of_the_same_names() -> None:
    foreign = descriptor_pb2.FileDescriptorProto(
        name="grpc_service.proto", package="inference", syntax="proto3"
    )
    foreign.message_type.add(name="ServerLiveRequest").field.add(name="odd", number=9, type=9, label=1)
    descriptor_pool.Default().AddSerializedFile(foreign.SerializeToString())
    theirs = message_factory.GetMessageClass(
        descriptor_pool.Default().FindMessageTypeByName("inference.ServerLiveRequest")
    )
    ours = protos.message("inference.ServerLiveRequest")
    assert theirs is not ours
    assert ours.FromString(theirs(odd="x").SerializeToString()) is not None


def test_a_message_is_the_same_class_each_time() -> None:
    assert protos.message("inference.ModelInferRequest") is protos.message("inference.ModelInferRequest")


def test_a_message_that_proto_lacks_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        protos.message("inference.Nothing")


def test_the_services_are_named() -> None:
    assert "inference.GRPCInferenceService" in protos.services()
    assert "grpc.health.v1.Health" in protos.services()


@pytest.mark.parametrize(
    "data", [b"\xff\xff", b"\x0a\x05ab", b"\x0a\x01\xff"], ids=["tag", "cut off", "UTF-8"]
)
def test_bytes_that_are_no_message_are_an_invalid_request(data: bytes) -> None:
    with pytest.raises(
        InvalidRequest, match=r"expected a inference\.ModelReadyRequest message, got \d bytes"
    ):
        protos.parse(protos.message("inference.ModelReadyRequest"), data)


def test_a_large_message_is_not_parsed_unless_it_was_counted() -> None:
    kind = protos.message("inference.ModelReadyRequest")
    large = b"\x78\x01" * 40_000
    with pytest.raises(TooLarge, match="ModelReadyRequest message of at most 65536 bytes, got 80000"):
        protos.parse(kind, large)
    assert protos.parse(kind, large, counted=True).name == ""
