"""``headrace signing-key FILE``: generate a key pair for signing versions."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli import auditing, common

_EXAMPLES = """examples:
  headrace signing-key trainer.pem
  headrace train clicks.arrows --publish models/ctr --signing-key trainer.pem
  headrace serve models --signing-keys trainer.pem.pub

The private key stays where versions are made. docs/security.md explains how to rotate keys."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="signing-key",
            help="create a key pair for signing versions",
            description="Create an Ed25519 key pair: the private key in FILE, which only its owner may "
            "read, and the public key in FILE.pub.",
            examples=_EXAMPLES,
            failure="a file exists already, or cannot be written",
            run=run,
        ),
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the file for the private key")
    auditing.add_option(parser)


def run(options: argparse.Namespace) -> int:
    """Generate the keys, and print where they are."""
    from headrace.versions.signatures import new_keys  # noqa: PLC0415 - an extra

    with auditing.audited(options, "signing-key-new", options.file.absolute()):
        key = new_keys(options.file)
    public = f"{options.file}.pub"
    if options.json:
        common.print_json({"key": key, "private_key": str(options.file), "public_key": public})
    else:
        print(f"key {key}: {options.file} signs, and is secret; {public} verifies")
    return common.DONE
