"""Files of settings under fuzzing, down to the objects that they configure."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from headrace.archive.embedders.embedder import ImageSettings, TextSettings
from headrace.archive.model.archive_toml import ArchiveConfig, archive_config
from headrace.archive.operations.open_archive import embedder_settings
from headrace.base.errors import ConfigError
from headrace.cli.main import build_parser
from headrace.cli.settings import parse as parse_options
from headrace.config import ModelConfig, ServerConfig, parse_model_config, parse_server_config
from headrace.config.image_recipe import Recipe
from headrace.config.toml_reader import convert, parse
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.schema import parse_schema
from headrace.training.options import settings_of
from headrace.training.search import configurations, read_search
from tests.click_weights import SCHEMA, settings_for
from tests.unit.test_config import FULL_MODEL

_BASE = Path("/nowhere")

_SERVER = """
workers = "auto"
archive = "archive.toml"
handover = "socket"
trusted_owners = ["root"]
tls = {certificate = "c.pem", key = "k.pem", client_ca = "ca.pem"}
access = {file = "keys.toml", open = ["health"], jwt = {keys = "jwks.json", issuer = "i", audience = "a"}}
cors = {origins = ["https://shop.example"]}
tracing = {endpoint = "http://127.0.0.1:4317", protocol = "grpc", sample_rate = 0.5}
access_log = {path = "-"}
[models.m]
path = "elsewhere"
batching = {max_batch_rows = 8, allowed_batch_rows = [4, 8]}
"""
_ARCHIVE = """
fill = true
store = {kind = "redis", address = "127.0.0.1:6379", tls = true, ca_file = "ca.pem"}
queue = {kind = "kafka", servers = ["127.0.0.1:9092"]}
[spaces.items]
embedder = "mine"
dtype = "int8"
content = "table:films.title"
oov = "mean"
[spaces.pictures]
embedder = "pictures"
content = "https://images.example/{key}.jpg"
[tables.films.columns]
title = {dtype = "text", bytes = 80, default = "none"}
year = "int32"
[tables.recent]
feed = {key = "user", every_seconds = 60}
ttl_seconds = 7200
[tables.recent.windows]
clicks = {count = true, seconds = 3600, where = ["kind", "click"]}
spent = {sum = "price", seconds = 600, per_seconds = 60, dtype = "float32"}
[embedders.mine]
kind = "model"
model = "words"
url = "http://encoder:8501"
[embedders.pictures]
kind = "image"
model = "means.onnx"
hosts = ["*.example"]
"""
_SEARCH = """
base = {factors = 4}
grid = {kind = ["fm", "ffm"], "embeddings.learning_rate" = [0.1, 0.2]}
gates = {max_size_mb = 10.0}
[[configurations]]
kind = "deepfm"
hidden = [8, 4]
network = {kind = "adam", learning_rate = 0.001}
"""


class Settings:
    """A reader for each kind of file, with good files."""

    def __init__(self) -> None:
        """Make the place of files that are named on a command line."""
        self._place = tempfile.TemporaryDirectory()
        self._train = build_parser(("train",))
        embedders = {"t": TextSettings(), "i": ImageSettings(model="m")}
        archive = ArchiveConfig(embedders={name: _plain(one) for name, one in embedders.items()})
        schema = msgspec.to_builtins(SCHEMA)
        training = settings_for("mdn")
        self._readers: list[tuple[Callable[[str], object], list[str]]] = [
            (lambda text: parse_model_config(text, name="m"), [_toml(ModelConfig()), FULL_MODEL]),
            (_server, [_toml(ServerConfig()), _SERVER]),
            (_archive, [_toml(archive) + "[spaces.titles]\nembedder = 't'\n", _ARCHIVE]),
            (parse_schema, [tomli_w.dumps(schema), SCHEMA.encode().decode()]),
            (lambda text: convert(parse(text, "recipe"), Recipe, "recipe"), [_toml(Recipe(size=(8, 8)))]),
            (_search, [_SEARCH]),
            (self._options, [_toml(training), 'model = "fm"\npublish = "m"\ninteraction = ["a*b"]\n']),
        ]

    def read(self, data: bytes) -> None:
        """The first byte says what kind of settings the rest are."""
        if not data:
            return
        reader, _ = self._readers[data[0] % len(self._readers)]
        text = data[1:].decode("utf-8", "replace")
        with suppress(ConfigError):
            reader(text)

    def seeds(self) -> Iterator[bytes]:
        """Each file as it is, and each of its settings alone, which stays TOML when a little is changed."""
        for number, (_, good) in enumerate(self._readers):
            for one in good:
                yield bytes((number,)) + one.encode()
                if not one.startswith("{"):  # a schema may be JSON
                    for alone in _alone(tomllib.loads(one)):
                        yield bytes((number,)) + tomli_w.dumps(alone).encode()

    def _options(self, text: str) -> None:
        """Options of a verb, and the settings that are left to it."""
        file = Path(self._place.name, "given.toml")
        file.write_text(text, "utf-8")
        options = parse_options(self._train, ["train", "--config", str(file)], {})
        settings_of(options.own_settings, "given.toml")


def _server(text: str) -> None:
    config = parse_server_config(text, "server.toml", _BASE)
    for name, entry in config.models.items():
        parse_model_config("", entry.overrides, name=name)


def _archive(text: str) -> None:
    config = archive_config(parse(text, "archive.toml"), "archive.toml", _BASE)
    for space in config.spaces.values():
        if space.embedder:
            embedder_settings(space.embedder, config.embedders.get(space.embedder), config.embedders)


def _search(text: str) -> None:
    configurations(read_search(parse(text, "search"), "search"), msgspec.to_builtins(ModelSettings()))


def _toml(settings: msgspec.Struct) -> str:
    """All settings with their values, but those that have none."""
    return tomli_w.dumps(_plain(settings))


def _alone(table: dict[str, Any]) -> Iterator[dict[str, object]]:
    for name, value in table.items():
        inner = _alone(value) if isinstance(value, dict) and value else (value,)
        for one in inner:
            yield {name: one}


def _plain(settings: msgspec.Struct) -> dict[str, object]:
    found = _without_none(msgspec.to_builtins(settings, enc_hook=str))
    return found if isinstance(found, dict) else {}


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    return value
