"""Opens the embedders that ``archive.toml`` configures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from headrace.archive.embedders.embedder import MINILM, Embedder, ImageSettings, ModelSettings, TextSettings
from headrace.archive.embedders.image_embedder import open_image
from headrace.archive.embedders.model_embedder import LocalModels, open_model
from headrace.archive.embedders.text_embedder import open_text
from headrace.base.errors import ConfigError, LoadError, nearest
from headrace.config.toml_reader import convert
from headrace.net.deadline_connection import Resolve, system_addresses

AnySettings = TextSettings | ImageSettings | ModelSettings
_KINDS: dict[str, type[AnySettings]] = {"text": TextSettings, "image": ImageSettings, "model": ModelSettings}
_BUILT_IN: dict[str, AnySettings] = {MINILM: TextSettings()}


def read_settings(name: str, table: Mapping[str, object] | None, others: Collection[str] = ()) -> AnySettings:
    """Convert an embedder's table to settings.

    Args:
        name: Name of the embedder in the space's settings.
        table: The table of that name under ``[embedders]``; None if there is none, for built-in embedders.
        others: Names of the tables under ``[embedders]``.

    Raises:
        ConfigError: There is no embedder of that name, its kind is unknown, or a setting is wrong.
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
    """Open an embedder: load its encoder, or call the served model once. It blocks until that is done.

    Args:
        name: Name of the embedder in the space's settings.
        table: See ``read_settings``.
        base: Directory that relative paths start from: that of ``archive.toml``.
        models: Models that this process serves; None if it serves none.
        resolve: Function that resolves host names for downloads.

    Raises:
        ConfigError: There is no embedder of that name, a setting is wrong, or a package or file is missing.
        LoadError: The model cannot be loaded.
        Refused: The remote server is not available now.
        HeadraceError: The remote or local server does not serve the model.
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
