"""SECURITY.md names each setting that protects from somebody, and each that takes from a protection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.config import ServerConfig

TABLE = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text("utf-8")
TABLE = TABLE.partition("## What is defended")[2].partition("\n## ")[0]
NAMED = set(re.findall(r"`([a-z_.]+)`", TABLE))

SECTIONS = ("access", "tls", "limits", "cors", "audit")
ALONE = {
    "host", "allow_code", "isolate", "admin", "admin_port", "admin_socket", "admin_metrics",
    "max_connection_age_seconds", "follow_links", "trusted_owners", "signing_keys",
}  # fmt: skip
NOTHING_TO_DO_WITH_IT = {
    "http_port", "grpc_port", "http_server", "grpc_server", "poll_seconds", "load_threads", "handover",
    "handover_seconds", "drain_seconds", "drain_lead_seconds", "log_format", "log_level",
    "tensorflow_metrics", "triton_metrics", "load_reports", "tracing", "access_log", "archive",
    "workers", "worker_timeout_seconds", "models",
}  # fmt: skip


def names(value: object, before: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(value):  # type: ignore[arg-type]
        inner = getattr(value, field.name)
        if isinstance(inner, msgspec.Struct):
            yield from names(inner, f"{before}{field.name}.")
        else:
            yield f"{before}{field.name}"


IN_SECTIONS = [
    name for section in SECTIONS for name in names(getattr(ServerConfig(), section), f"{section}.")
]


@pytest.mark.parametrize("name", [*IN_SECTIONS, *sorted(ALONE)])
def test_each_setting_of_security_is_named(name: str) -> None:
    assert name in NAMED


def test_each_setting_of_a_server_is_of_security_or_is_known_not_to_be() -> None:
    """A new one takes its place in one of these lists."""
    found = {field.name for field in msgspec.structs.fields(ServerConfig)}
    assert found == ALONE | {*SECTIONS} | NOTHING_TO_DO_WITH_IT


def test_no_setting_is_named_that_there_is_not() -> None:
    own = {"isolate", "hosts", "priorities", "metrics", "model.py"}  # a model's, an embedder's, keys'; a file
    every = {*names(ServerConfig())} | own
    assert {name for name in NAMED if name not in every and name not in SECTIONS} == set()
