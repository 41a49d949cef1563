"""The ``headrace`` command, with one module per verb."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from headrace import __version__
from headrace.base.errors import FailedPrecondition, HeadraceError
from headrace.cli import common, settings

_VERBS = (
    "serve",
    "train",
    "stream",
    "example",
    "publish",
    "versions",
    "rollback",
    "hold",
    "sign",
    "signing-key",
    "export",
    "profile",
    "compile",
    "compare",
    "archive",
    "key",
    "status",
    "top",
)
"""The verbs in the order of the help; each is implemented in the module of its name."""

_EXAMPLES = """examples:
  headrace example models              write a small example model
  headrace serve models                serve every model in a directory
  headrace stream generate --out rows  draw rows to learn from
  headrace train rows --publish models/ctr
                                       learn from them
  headrace publish models/m m.onnx     publish files as a new version
  headrace versions models/ctr         show which versions there are
  headrace rollback models/ctr/3       serve version 3 until the pin is released
  headrace hold models/ctr/3           keep version 3 until it is released
  headrace sign models/ctr/3 --key k   sign version 3 with a private key
  headrace export models/ctr/3 m.onnx  write a click model as ONNX
  headrace profile models/ctr          show where a model's time goes
  headrace compare skops onnx rows.csv check a converted model against the original
  headrace compile models              compile click models' kernels ahead
  headrace archive lookup titles Heat  look up an embedding
  headrace key new ranking --models '*'
                                       create a key for a caller
  headrace status http://127.0.0.1:8501
                                       show the state of a running server
  headrace top http://127.0.0.1:8501   watch it
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The words after ``headrace``; the process's own if None.

    Returns:
        The exit code; ``headrace.cli.common`` names them, docs/command-line.md explains them.
    """
    _fill_gaps()
    _escape_unprintable()
    origins: Mapping[str, str] = {}
    try:
        words = sys.argv[1:] if arguments is None else arguments
        options = settings.parse(build_parser(_needed(words)), words)
        origins = getattr(options, "origins", origins)
        for name, doubt in getattr(options, "doubts", {}).items():
            print(f"headrace: {doubt}", file=sys.stderr)
            os.environ.pop(name, None)  # warn once, as a server may start its successor
        code: int = options.run(options)
        _write_out()
    except BrokenPipeError:
        _write_nowhere()
        return common.UNREAD
    except HeadraceError as error:
        print(f"headrace: {settings.blamed(error.message, origins)}", file=sys.stderr)
        return common.exit_code(error)
    except KeyboardInterrupt:
        return common.INTERRUPTED
    return code


def build_parser(names: Sequence[str] = _VERBS) -> argparse.ArgumentParser:
    """Return the parser of the verbs and their options.

    Args:
        names: Verbs to include; the modules of the others are not imported.
    """
    parser = common.Parser(
        prog="headrace",
        description="Serve models in milliseconds: batched, versioned, over REST and gRPC.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    words = common.add_verbs(parser)
    for name in names:
        import_module(f"headrace.cli.{name.replace('-', '_')}").add_to(words)
    for made in common.all_verbs(parser):
        made.set_defaults(settings=settings.Settings(made, made.get_default("own_keys")))
    return parser


def _needed(words: Sequence[str]) -> Sequence[str]:
    """Return the verb that a command line begins with; all verbs for the help or an unknown word."""
    first = words[:1]
    return first if first and first[0] in _VERBS else _VERBS


def _fill_gaps() -> None:
    """Open the null device for standard streams that were closed before the start, as by ``>&-``.

    Otherwise the next file or socket would get the descriptor and receive all output. libuv aborts then.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor
            stream = open(nothing, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until exit
            setattr(sys, name, stream)


def _escape_unprintable() -> None:
    """Print characters that the encoding lacks as escapes; a printing error would end the verb."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test or a caller may have replaced it
            stream.reconfigure(errors="backslashreplace")


def _write_out() -> None:
    """Flush standard output.

    Raises:
        FailedPrecondition: The output cannot be written, such as to a full disk.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _write_nowhere()
        raise FailedPrecondition(f"standard output cannot be written: {error.strerror}") from error


def _write_nowhere() -> None:
    """Discard buffered output, which Python would otherwise try to write, and report, at exit."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
