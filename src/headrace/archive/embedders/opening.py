"""Opens embedders: which kind a table of ``archive.toml`` means, and with what."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.images.connection import Resolve, system_addresses
from headrace.archive.embedders.images.embedder import open_image
from headrace.archive.embedders.models.embedder import open_model
from headrace.archive.embedders.models.served import LocalModels
from headrace.archive.embedders.settings import MINILM, ImageSettings, ModelSettings, TextSettings
from headrace.archive.embedders.text import open_text
from headrace.config.reading import convert
from headrace.errors import ConfigError, LoadError, nearest

AnySettings = TextSettings | ImageSettings | ModelSettings
_KINDS: dict[str, type[AnySettings]] = {"text": TextSettings, "image": ImageSettings, "model": ModelSettings}
_BUILT_IN: dict[str, AnySettings] = {MINILM: TextSettings()}


def read_settings(name: str, table: Mapping[str, object] | None, others: Collection[str] = ()) -> AnySettings:
    """Make settings of an embedder's table.

    Args:
        name: What the space calls it.
        table: The table of that name under ``[embedders]``; None where there is none: then it is a built-in
            one.
        others: The names of the tables that there are under ``[embedders]``.

    Raises:
        ConfigError: No embedder is called that, its kind is unknown, or a setting is wrong.
    """
    if table is None:
        if name not in _BUILT_IN:
            expected = f"{' or '.join(_BUILT_IN)}, or a table [embedders.{name}]"
            meant = nearest(name, [*_BUILT_IN, *others])
            hint = f"; did you mean {meant}?" if meant else ""
            raise ConfigError(f"embedder: expected {expected}; got {name!r}{hint}")
        return _BUILT_IN[name]
    where, kind = f"embedders.{name}", table.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(f"{where}.kind: expected one of {', '.join(map(repr, _KINDS))}, got {kind!r}")
    return convert(table, _KINDS[kind], where)


def open_embedder(
    name: str,
    table: Mapping[str, object] | None,
    base: Path,
    *,
    models: LocalModels | None = None,
    resolve: Resolve = system_addresses,
) -> Embedder:
    """Load an encoder; this takes as long as reading its files.

    Args:
        name: What the space calls it.
        table: As for ``read_settings``.
        base: What relative paths start from: where ``archive.toml`` lies.
        models: Those that this process serves; None where it serves none.
        resolve: Says the addresses of a name that is downloaded from.

    Raises:
        ConfigError: No embedder is called that, a setting is wrong, or a package or file is missing.
        LoadError: Its model cannot be loaded.
        Refused: The server that it asks cannot be asked now.
        HeadraceError: The model that it asks for is not served there.
    """
    settings = read_settings(name, table)
    try:
        if isinstance(settings, TextSettings):
            return open_text(settings, base)
        if isinstance(settings, ImageSettings):
            return open_image(settings, base, resolve)
        return open_model(settings, base, models)
    except (ConfigError, LoadError) as error:
        raise type(error)(f"embedders.{name}: {error.message}") from error
