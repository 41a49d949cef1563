"""``headrace publish DIR/NAME FILE…``: publish files as a version with its manifest, atomically."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.base.errors import ConfigError, LoadError, NotLoadable
from headrace.base.files import saying
from headrace.base.terminal import Line, counted, size
from headrace.cli import auditing, common, models, number_types
from headrace.config import (
    A_MODEL_NAME,
    LARGEST_VERSION,
    MODEL_CONFIG_FILE,
    MODEL_NAME,
    parse_model_config,
    read_model_config,
)
from headrace.config.checks import wrong
from headrace.versions.layout import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    holds_versions,
    model_directories,
    version_number,
)
from headrace.versions.manifest import Manifest, Signer, check_manifest, publish, read_manifest
from headrace.versions.user_files import copy_files, named_files

_EXAMPLES = """examples:
  headrace publish models/ranking model.onnx
  headrace publish models/ranking out/               everything in a directory
  headrace publish models/ranking out/ --version 7 --signing-key trainer.pem
  headrace publish live/ctr staging/ctr/17           a version that was published elsewhere

A running server finds the version within a second, and serves it once it is loaded."""

_ABOUT = (MANIFEST_FILE, SIGNATURE_FILE)


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="publish",
            help="publish a model's files as a new version",
            description="Copy files into a model's directory as a new version, with a manifest of sizes and "
            "checksums. The version gets its number only when all of it is on disk, so that a server never "
            "sees an incomplete one.",
            examples=_EXAMPLES,
            failure="the version exists already, no file has the name of a model, or writing failed (nothing "
            "is left behind)",
            run=run,
        ),
    )
    parser.add_argument(
        "model", metavar=models.MODEL, type=Path, help="the model's directory; created if it is missing"
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="files of the version. A single directory contributes its contents; a directory given with "
        "other files is copied under its own name",
    )
    parser.add_argument(
        "--version",
        metavar="N",
        type=number_types.whole("version", least=0, most=LARGEST_VERSION),
        help="the version's number (default the next one)",
    )
    parser.add_argument("--signing-key", metavar="FILE", type=Path, help="sign it with this private key")
    auditing.add_option(parser)


def run(options: argparse.Namespace) -> int:
    """Publish the version, and print what was published."""
    model: Path = options.model
    _expect_model(model)
    with saying(f"{options.files[0]} cannot be listed"):
        files = named_files(options.files)
    kind = _kind(files, model, options.files)
    earlier = _manifest(files)
    sign = None if options.signing_key is None else _Signing(options.signing_key)
    line = Line(sys.stderr)
    writer = _Copying(files, line, is_checked=earlier is not None)
    try:
        with auditing.audited(options, "publish", model.absolute()), saying(f"{model}: cannot be published"):
            published = publish(
                writer,
                model,
                options.version,
                signature=earlier.signature if earlier else "",
                metadata=earlier.metadata if earlier else None,
                sign=sign,
            )
    finally:
        line.clear()
    return _tell(options, published, kind, None if sign is None else sign.key)


def _tell(options: argparse.Namespace, published: Path, kind: str, key: str | None) -> int:
    manifest = read_manifest(published)
    records = manifest.files.values() if manifest else ()
    size_bytes = sum(one.size_bytes for one in records)
    if options.json:
        said = {"model": models.name_of(options.model), "version": int(published.name)}
        said |= {"directory": str(published), "kind": kind}
        common.print_json(said | {"files": len(records), "size_bytes": size_bytes, "key": key})
    else:
        signed = "" if key is None else f", signed with key {key}"
        print(f"published {published}: {kind}, {counted(len(records), 'file')}, {size(size_bytes)}{signed}")
    return common.DONE


class _Copying:
    """Copies the files into the draft, and shows the progress."""

    def __init__(self, files: Mapping[str, Path], line: Line, *, is_checked: bool) -> None:
        self._files = files
        self._line = line
        self._is_checked = is_checked
        with saying("the files to publish cannot be read"):
            self._whole = sum(file.stat().st_size for file in files.values())
        self._done = 0

    def __call__(self, draft: Path) -> None:
        copy_files(self._files, draft, self._copied)
        self._line.show("checksums …")
        if self._is_checked:  # the files came with a manifest: check the copies against it
            check_manifest(draft)

    def _copied(self, count: int) -> None:
        self._done += count
        if self._line.due:
            self._line.show(f"copied {size(self._done)} of {size(self._whole)}")


class _Signing:
    """A Signer that stores the id of its key."""

    def __init__(self, private_key: Path) -> None:
        from headrace.versions.signatures import signer  # noqa: PLC0415 - an extra

        self._sign: Signer = signer(private_key)
        self.key = ""

    def __call__(self, draft: Path, model: str, number: int) -> None:
        self.key = str(self._sign(draft, model, number))


def _expect_model(model: Path) -> None:
    """Refuse a directory of models, a version, a file, and a name that no server takes.

    Raises:
        ConfigError: The path is one of these, or its last part is no model's name.
    """
    if models.is_directory(model):
        if model_directories(model):
            raise ConfigError(
                f"{models.MODEL}: {model} is a directory of models; add the model's name: {model}/NAME"
            )
        directory, number = models.find_model(model, there=False)
    elif model.exists():
        raise ConfigError(
            f"{models.MODEL}: expected the model's directory as the first argument, got the file {model}"
        )
    else:
        directory, number = model.parent, version_number(model.name)
    named = os.path.abspath(model if number is None else directory)
    if not MODEL_NAME.fullmatch(name := os.path.basename(named)):
        raise wrong(models.MODEL, A_MODEL_NAME, name)
    if number is not None:
        raise ConfigError(
            f"{models.MODEL}: {model} names a version; give the model, {directory}, and --version {number}"
        )


def _manifest(files: Mapping[str, Path]) -> Manifest | None:
    """Return the manifest that the files came with, which the copies must match; None without one."""
    return read_manifest(files[MANIFEST_FILE].parent) if MANIFEST_FILE in files else None


def _kind(files: Mapping[str, Path], model: Path, sources: list[Path]) -> str:
    """Return the kind of the runtime that will load the version.

    Raises:
        LoadError: There are no files, or none of them is a model.
        ConfigError: The model's settings cannot be read.
    """
    from headrace.runtimes.format_guess import mistaken_for_model  # noqa: PLC0415 - not needed to list the verbs
    from headrace.runtimes.registry import find  # noqa: PLC0415 - as above

    if len(sources) == 1 and sources[0].is_dir() and holds_versions(sources[0]):
        raise NotLoadable(f"{sources[0]} holds versions; name one of them, as in {sources[0]}/1")
    names = sorted(name for name in files if "/" not in name and name not in _ABOUT)
    if not files.keys() - _ABOUT:
        raise LoadError(f"nothing to publish: {sources[0]} holds no files; name a model's files")
    try:
        wanted = parse_model_config(read_model_config(model)).runtime.kind
    except OSError as error:
        raise ConfigError(f"{MODEL_CONFIG_FILE} cannot be read: {error.strerror}") from error
    runtime, name = find(names, wanted)
    if what := mistaken_for_model(files[name]):
        raise LoadError(f"{files[name]} {what}")
    return runtime.kind
