"""``xds.data.orca.v3.OrcaLoadReport``, as its specification has it: for clients that read load reports."""

from __future__ import annotations

import re
import struct
import subprocess
from base64 import b64decode

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

_NUMBERS = {
    "cpu_utilization": 1,
    "mem_utilization": 2,
    "rps_fractional": 6,
    "eps": 7,
    "application_utilization": 9,
}


def _report_class() -> type[Message]:
    file = descriptor_pb2.FileDescriptorProto(
        name="orca_load_report.proto", package="xds.data.orca.v3", syntax="proto3"
    )
    message = file.message_type.add(name="OrcaLoadReport")
    for name, number in _NUMBERS.items():
        message.field.add(
            name=name,
            number=number,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport"))


_OrcaLoadReport = _report_class()


def parsed(message: bytes) -> dict[str, float]:
    """The fields of a serialized report that are not 0.

    Raises:
        AssertionError: It has fields that are not known here.
    """
    report = _OrcaLoadReport.FromString(message)
    fields = {field.name: value for field, value in report.ListFields()}
    assert report.ByteSize() == _OrcaLoadReport(**fields).ByteSize(), message
    return fields


def trailed(port: int, path: str, message: bytes = b"") -> dict[str, float] | None:
    """The report in the trailers of a gRPC call; None without one.

    They are read with curl: grpcio hands this trailer to its balancing policies, and hides it from programs.

    Args:
        port: Of a server on this machine.
        path: ``/package.Service/Method``.
        message: A serialized message.
    """
    command = ["curl", "--http2-prior-knowledge", "--silent", "--show-error", "--max-time", "20"]
    command += ["--dump-header", "-", "--output", "/dev/null", "--data-binary", "@-"]
    command += ["--header", "content-type: application/grpc", "--header", "te: trailers"]
    framed = struct.pack(">BI", 0, len(message)) + message
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{path}"],
        input=framed,
        capture_output=True,
        check=True,
    )
    values = re.findall(rb"^endpoint-load-metrics-bin: (\S+)\r$", done.stdout, re.MULTILINE)
    assert len(values) <= 1, done.stdout
    return parsed(b64decode(values[0], validate=True)) if values else None
