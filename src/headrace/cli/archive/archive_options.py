"""Common parts of all verbs of ``headrace archive``: their options, and opening the archive."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from headrace.cli import common, number_types

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.model.archive_toml import ArchiveConfig

DEFAULT_FILE = Path("archive.toml")
"""Default file of an archive's settings."""


def add_archive(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the archive.

    Args:
        parser: The verb.
    """
    parser.add_argument(
        "--archive",
        metavar="FILE",
        type=Path,
        default=DEFAULT_FILE,
        help=f"the archive's settings (default {DEFAULT_FILE})",
    )


def add_space(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the space that the verb works on."""
    parser.add_argument("space", metavar="SPACE", help="a space of the archive; a feature table is one")


def add_keys(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the keys that the verb works on."""
    parser.add_argument("keys", metavar="KEY", nargs="+", help="one or more keys")


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a version of the space."""
    parser.add_argument(
        "--version",
        metavar="N",
        type=number_types.whole("version", least=0, most=2**31),
        default=0,
        help="the version of the space; 0 = its default (default 0)",
    )


def settings_of(options: argparse.Namespace) -> ArchiveConfig:
    """Return the settings of the archive that the options name.

    Raises:
        ConfigError: They cannot be read, or are wrong.
    """
    from headrace.archive.model.archive_toml import read_archive_config  # noqa: PLC0415 - not needed to list the verbs

    return read_archive_config(_file_of(options))


def base_of(options: argparse.Namespace) -> Path:
    """Return the directory of the archive's settings, the base of relative paths."""
    return _file_of(options).absolute().parent


def open_archive_of(options: argparse.Namespace) -> Archive:
    """Open the archive that the options name; the caller closes it.

    Raises:
        ConfigError: Its settings are wrong, or something that they name cannot be opened.
        LoadError: An embedder's model cannot be loaded.
        Unavailable: The store or the queue cannot be opened now.
    """
    from headrace.archive.operations.open_archive import open_archive  # noqa: PLC0415 - not needed to list the verbs

    return open_archive(settings_of(options), base_of(options))


def _file_of(options: argparse.Namespace) -> Path:
    file: Path = options.archive
    if not file.exists():
        way_out = (
            'write one with two lines, [spaces.titles] and embedder = "minilm", or name it with '
            "--archive FILE"
        )
        raise ConfigError(f"--archive: {file} does not exist; {way_out}")
    return file


def tell(options: argparse.Namespace, done: str, what: Mapping[str, object]) -> None:
    """Print what a verb has done with keys of a space.

    Args:
        options: The verb's options; ``--json`` selects the format.
        done: Past participle of the verb, such as ``stored``.
        what: The ``space``, the number of ``keys``, and further fields for programs.
    """
    if options.json:
        common.print_json(what)
        return
    keys = what["keys"]
    print(f"{done} {keys} {'key' if keys == 1 else 'keys'} in {what['space']}")
