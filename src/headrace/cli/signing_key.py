"""``headrace signing-key FILE``: make a pair of keys to sign versions with."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli import auditing, verbs

_EXAMPLES = """examples:
  headrace signing-key trainer.pem
  headrace train clicks.arrows --publish models/ctr --signing-key trainer.pem
  headrace serve models --signing-keys trainer.pem.pub

The private key stays where versions are made. docs/security.md tells how keys are exchanged."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="signing-key",
            help="make a pair of keys to sign versions with",
            description="Make an Ed25519 key pair: the private key in FILE, which only its owner may read, "
            "and the public key in FILE.pub.",
            examples=_EXAMPLES,
            failure="a file exists already, or cannot be written",
            run=run,
        ),
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="where the private key goes")
    auditing.add_option(parser)


def run(options: argparse.Namespace) -> int:
    """Make the keys and say where they are."""
    from headrace.versions.signing import new_keys  # noqa: PLC0415 - an extra

    with auditing.told(options, "signing-key-new", options.file.absolute()):
        key = new_keys(options.file)
    public = f"{options.file}.pub"
    if options.json:
        verbs.print_json({"key": key, "private_key": str(options.file), "public_key": public})
    else:
        print(f"key {key}: {options.file} signs, and is secret; {public} verifies")
    return verbs.DONE
