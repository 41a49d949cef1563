"""Compiles proto/*.proto into the one descriptor set that the package carries; ``--check``: has it drifted?

Needs grpcio-tools. The set holds the imports too (``google.protobuf.Any``), so that it fills a private pool.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "proto"
TARGET = ROOT / "src/headrace/frontends/wire/protos.binpb"


def compiled(folder: Path) -> bytes:
    """Compile every proto file of a folder.

    Raises:
        SystemExit: The compiler found a mistake; it has said where.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, "set")
        options = [f"-I{folder}", f"-I{files('grpc_tools') / '_proto'}", "--include_imports"]
        code = protoc.main(["protoc", *options, f"--descriptor_set_out={target}", *names])
        if code:
            sys.exit(code)
        return target.read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the descriptor set, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the set has drifted")
    wanted = compiled(SOURCES)
    if not parser.parse_args(arguments).check:
        TARGET.write_bytes(wanted)
        return 0
    # Compared as messages: another compiler may write the same set in other bytes.
    if TARGET.exists() and FileDescriptorSet.FromString(TARGET.read_bytes()) == FileDescriptorSet.FromString(
        wanted
    ):
        return 0
    print(
        f"{TARGET.relative_to(ROOT)} does not match proto/: run `python tools/protos.py` and commit it",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
