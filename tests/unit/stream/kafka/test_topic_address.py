"""Addresses of topics, and files of settings: what is taken, and what is refused without telling a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.stream.kafka.topic_address import parse_topic, read_settings


@pytest.mark.parametrize(
    ("text", "servers", "name"),
    [
        ("kafka://localhost:9092/clicks", "localhost:9092", "clicks"),
        ("kafka://a:1,b.example:2/x.y-z_1", "a:1,b.example:2", "x.y-z_1"),
        ("kafka://[::1]:9092/clicks", "[::1]:9092", "clicks"),
        ("kafka://broker/clicks", "broker", "clicks"),
    ],
)
def test_addresses(text: str, servers: str, name: str) -> None:
    assert parse_topic(text, "input") == (servers, name)


@pytest.mark.parametrize(
    "text",
    ["kafka://", "kafka://h:1", "kafka://h:1/", "kafka://h:x/t", "kafka://h:1/a/b", "kafka://,/t", "h:1/t"],
)
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="input: expected kafka://HOST:PORT"):
        parse_topic(text, "input")


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="--kafka-config") as refused:
        parse_topic("kafka://me:secret@h:1/t", "input")
    assert "secret" not in refused.value.message


def test_settings(tmp_path: Path) -> None:
    file = tmp_path / "client"
    file.write_text("# a comment\n\nsasl.password = a=b \nsecurity.protocol=SSL\n")
    assert read_settings(file) == {"sasl.password": "a=b", "security.protocol": "SSL"}


@pytest.mark.parametrize("line", ["sasl.password secret", "= secret", "group.id = secret"])
def test_wrong_settings_are_told_without_their_values(tmp_path: Path, line: str) -> None:
    file = tmp_path / "client"
    file.write_text(f"# first\n{line}\n")
    with pytest.raises(ConfigError, match="line 2") as refused:
        read_settings(file)
    assert "secret" not in refused.value.message
