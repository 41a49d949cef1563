"""``headrace sign DIR[/NAME[/N]] --key FILE``: sign versions that are already published."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.base.errors import ConfigError, NotFound
from headrace.base.terminal import counted
from headrace.cli import auditing, common, models
from headrace.versions.layout import version_directories

_EXAMPLES = """examples:
  headrace sign models/ctr/17 --key trainer.pem
  headrace sign models/ctr --key trainer.pem        every version of a model
  headrace sign models --key trainer.pem            every version of every model

A version needs a manifest, as `headrace publish` and `headrace train` write it."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="sign",
            help="sign versions, for servers that serve signed ones only",
            description="Sign the manifests of versions, and so every file that they list, for the model's "
            "name and the version's number. Signatures of other keys are kept.",
            examples=_EXAMPLES,
            failure="a version has no manifest, or its signature cannot be written",
            run=run,
        ),
    )
    parser.add_argument("model", metavar=models.ANY, type=Path, help="the versions to sign")
    parser.add_argument(
        "--key",
        metavar="FILE",
        type=Path,
        required=True,
        help="the private key, as created by `headrace signing-key`",
    )
    auditing.add_option(parser)
    parser.add_argument(
        "--name", metavar="NAME", help="the model's name on the server (default: the name of its directory)"
    )


def run(options: argparse.Namespace) -> int:
    """Sign the versions, and print what was signed."""
    found = models.find_models(options.model)
    if options.name is not None and len(found) > 1:
        raise ConfigError("name: one name for several models; name one model, or leave --name out")
    from headrace.versions.signatures import signer  # noqa: PLC0415 - an extra

    sign = signer(options.key)
    signed = []
    for directory, number in found:
        name = options.name or models.name_of(directory)
        for version, path in version_directories(directory).items():
            if number in (None, version):
                with auditing.audited(options, "sign", path.absolute()):
                    key = sign(path, name, version)
                signed.append({"model": name, "version": version})
    if not signed:
        raise NotFound(f"{models.ANY}: {options.model} has no versions")
    if options.json:
        common.print_json({"key": key, "signed": signed})
    else:
        print(f"signed {counted(len(signed), 'version')} with key {key}")
    return common.DONE
