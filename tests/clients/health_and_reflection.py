"""Asks a server for its health and for its services with grpcio's own stubs; prints the answers as JSON.

Run by tests in the clients' environment. Usage: health_and_reflection.py HOST:PORT
"""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SECONDS = 20.0


def health(channel: grpc.Channel) -> dict[str, Any]:
    stub = health_pb2_grpc.HealthStub(channel)

    def check(name: str) -> str:
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=SECONDS)
        except grpc.RpcError as error:
            return str(error.code().name)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    first = health_pb2.HealthCheckResponse.ServingStatus.Name(next(watch).status)
    watch.cancel()
    names = [
        "",
        "inference.GRPCInferenceService",
        "tensorflow.serving.PredictionService",
        "tensorflow.serving.ModelService",
        "no.such.Service",
    ]
    return {"check": {name: check(name) for name in names}, "watch": first}


def reflection(channel: grpc.Channel) -> dict[str, Any]:
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = descriptor_pool.DescriptorPool(database)
    services = {
        name: [method.name for method in pool.FindServiceByName(name).methods]
        for name in database.get_services()
    }
    request = pool.FindMessageTypeByName("inference.ModelInferRequest")
    return {"services": services, "request": [field.name for field in request.fields]}


if __name__ == "__main__":
    with grpc.insecure_channel(sys.argv[1]) as opened:
        print(json.dumps({"health": health(opened), "reflection": reflection(opened)}))
