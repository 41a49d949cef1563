"""Find the runtime of a version directory in the table ``RUNTIMES``, and import only that one.

A runtime is a module with ``load(file: Path, options: RuntimeOptions) -> Servable`` that raises LoadError.
"""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NoReturn, cast

from headrace.base.errors import LoadError, NotLoadable, listed
from headrace.base.files import is_visible
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature
from headrace.runtimes.format_guess import mistaken_for_model
from headrace.runtimes.options import RuntimeOptions, SignatureSettings

__all__ = ["RUNTIMES", "Runtime", "RuntimeOptions", "SignatureSettings", "find", "load"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """One row of the table.

    Attributes:
        kind: Its name in settings.
        module: The module that loads it.
        file: File name that identifies a directory of this runtime.
        pattern: File names that are recognised if exactly one matches and no file name decides.
        extra: The extra of headrace that installs the module's imports; empty if none is needed.
        reads: Patterns of further files that it reads, which a manifest must list.
        checks: Patterns of the files whose checksums it checks itself while reading.
        is_code: Whether the version directory holds code that is run.
        native: Whether it loads mostly without the GIL, through ``options.native``.
        names: Whether its module's ``checked(file)`` returns more files whose checksums it checks itself.
        instances: Default number of instances; 0 for one per core.
    """

    kind: str
    module: str
    file: str
    pattern: str
    extra: str = ""
    reads: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    is_code: bool = False
    native: bool = False
    names: bool = False
    instances: int = 0


RUNTIMES = (
    Runtime("onnx", "headrace.runtimes.onnx", "model.onnx", "*.onnx", native=True, names=True),
    Runtime("sklearn", "headrace.runtimes.sklearn", "model.skops", "*.skops", extra="sklearn"),
    *(
        Runtime("sklearn", "headrace.runtimes.sklearn", file, file, extra="sklearn", is_code=True)
        for file in ("model.joblib", "model.pkl")
    ),
    Runtime("lightgbm", "headrace.runtimes.lightgbm", "model.txt", "model.txt", extra="lightgbm"),
    Runtime("xgboost", "headrace.runtimes.xgboost", "model.ubj", "*.ubj", extra="xgboost"),
    Runtime("xgboost", "headrace.runtimes.xgboost", "model.json", "model.json", extra="xgboost"),
    Runtime("catboost", "headrace.runtimes.catboost", "model.cbm", "*.cbm", extra="catboost"),
    Runtime(
        "ctr", "headrace.runtimes.ctr", "model.ctr", "model.ctr", extra="ctr", checks=("model.ctr", "*.npy")
    ),
    Runtime(
        "tensorflow",
        "headrace.runtimes.tensorflow",
        "saved_model.pb",
        "saved_model.pb",
        extra="tensorflow",
        reads=("variables/*", "assets/*"),
    ),
    Runtime("keras", "headrace.runtimes.keras", "model.keras", "*.keras", extra="keras"),
    Runtime("vw", "headrace.runtimes.vw", "model.vw.txt", "*.vw.txt", extra="vw"),
    Runtime("litert", "headrace.runtimes.litert", "model.tflite", "*.tflite", extra="litert"),
    *(
        Runtime("torch", "headrace.runtimes.torch", file, pattern, extra="torch", is_code=True, instances=1)
        for file, pattern in (("model.pt2", "*.pt2"), ("model.pt", "*.pt"))
    ),
    # Calls of Python code seldom speed each other up: they share the GIL, and often one GPU.
    Runtime("python", "headrace.runtimes.python", "model.py", "model.py", is_code=True, instances=1),
)

_Load = Callable[[Path, RuntimeOptions], Servable]
_MOST_LOOKED_INTO = 20
_PICKLES = (".pkl", ".pickle", ".joblib")


def load(path: Path, options: RuntimeOptions) -> Servable:
    """Load a version directory.

    Args:
        path: The directory, which must be complete and not change any more.
        options: The operator's settings.

    Returns:
        The Servable; the caller must close it.

    Raises:
        LoadError: Not exactly one runtime recognises it, a package is missing, or it cannot be loaded.
    """
    runtime, name = _find(path, options.kind)
    if options.checksums is not None:
        _check_listed(path, runtime, name, options.checksums)
    try:
        loads = cast("_Load", _module(runtime).load)
        if runtime.native:
            servable = loads(path / name, options)
        else:
            servable = options.share(lambda: loads(path / name, options))
    except LoadError as error:
        if what := mistaken_for_model(path / name):
            raise LoadError(f"{name} {what}") from error
        raise
    try:
        _check_signature(servable.signatures[DEFAULT_SIGNATURE], options.signature)
    except LoadError:
        servable.close()
        raise
    return servable


def recognised(path: Path, kind: str) -> Runtime | None:
    """Return the runtime of a version directory; None unless exactly one is found.

    ``expect`` raises the reason.

    Args:
        path: The directory.
        kind: The runtime that the operator chose; empty for any.
    """
    try:
        return find(_names(path), kind)[0]
    except LoadError:
        return None


def expect(path: Path, kind: str) -> NoReturn:
    """Raise the reason why no runtime has recognised a version directory.

    Args:
        path: The directory.
        kind: The runtime that the operator chose; empty for any.

    Raises:
        LoadError: Always.
    """
    _find(path, kind)
    raise LoadError("its files were changed while it was loaded; publish the version again")


def checks_itself(path: Path, runtime: Runtime | None) -> Callable[[str], bool]:
    """Return a predicate for the files whose checksums the runtime checks itself while reading.

    Args:
        path: The version directory.
        runtime: The runtime; None for none.
    """
    if runtime is None:
        return lambda name: False
    try:
        named = _named(path, runtime)
    except LoadError:  # `load` reports it
        named = ()
    return lambda name: (
        name in named or ("/" not in name and any(fnmatch.fnmatchcase(name, one) for one in runtime.checks))
    )


def _named(path: Path, runtime: Runtime) -> Container[str]:
    if not runtime.names:
        return ()
    _, model = find(_names(path), runtime.kind)
    named: Container[str] = _module(runtime).checked(path / model)
    return named


def _names(path: Path) -> list[str]:
    try:
        return sorted(one.name for one in path.iterdir() if is_visible(one.name) and one.is_file())
    except OSError as error:
        raise LoadError(f"cannot read the version directory {path}: {error.strerror}") from error


def _check_listed(path: Path, runtime: Runtime, name: str, listed: Container[str]) -> None:
    """Refuse files that the runtime reads and the manifest does not list."""
    besides = (file for pattern in runtime.reads for file in path.glob(pattern) if file.is_file())
    for file in (name, *sorted(one.relative_to(path).as_posix() for one in besides)):
        if file not in listed:
            raise LoadError(f"{file} is read, and the manifest does not list it; publish the version again")


def _find(path: Path, kind: str) -> tuple[Runtime, str]:
    """Call ``find``; if the directory has no files, name a subdirectory that holds a model in the error.

    Raises:
        LoadError: No runtime is recognised, or several are.
    """
    names = _names(path)
    try:
        return find(names, kind)
    except NotLoadable as error:
        below = _below(path) if not names else ""
        if below:
            raise NotLoadable(
                f"{error.message}; {below} holds one: move its content up into the version directory"
            ) from None
        raise


def _below(path: Path, depth: int = 2) -> str:
    """Return the subdirectory that holds a model, such as ``export``; "" if none does that can be read."""
    try:
        found = sorted(path.iterdir())[:_MOST_LOOKED_INTO]
    except OSError:
        return ""
    for one in found:
        if not (is_visible(one.name) and one.is_dir()):
            continue
        if recognised(one, ""):
            return one.name
        if depth > 1 and (deeper := _below(one, depth - 1)):
            return f"{one.name}/{deeper}"
    return ""


def find(names: Sequence[str], kind: str = "", runtimes: Sequence[Runtime] = RUNTIMES) -> tuple[Runtime, str]:
    """Decide which runtime loads which file of a version directory.

    A runtime's own file name (``model.onnx``) decides, whatever lies beside it; otherwise the only file that
    matches a pattern does.

    Args:
        names: The names of the files in the directory.
        kind: The runtime that the operator chose; empty for any.
        runtimes: The table.

    Returns:
        The runtime, and the name of the file that it loads.

    Raises:
        LoadError: No runtime is recognised, or several are.
    """
    candidates = [runtime for runtime in runtimes if kind in ("", runtime.kind)]
    if not candidates:
        kinds = dict.fromkeys(row.kind for row in runtimes)
        raise NotLoadable(f"runtime.kind: expected {listed(kinds)}, got {kind!r}")
    settled = [(runtime, runtime.file) for runtime in candidates if runtime.file in names]
    matched = settled or [
        (runtime, name)
        for runtime in candidates
        for name in names
        if fnmatch.fnmatchcase(name, runtime.pattern)
    ]
    if len(matched) == 1:
        return matched[0]
    if matched:
        raise NotLoadable(_several_found(matched, is_named=bool(settled)))
    raise NotLoadable(_nothing_found(names, candidates))


def _several_found(matched: Sequence[tuple[Runtime, str]], *, is_named: bool) -> str:
    ways, files = ["keep one of them"], sorted({runtime.file for runtime, _ in matched})
    if not is_named:
        ways.append(f"call it {' or '.join(files)}")
    kinds = sorted({runtime.kind for runtime, _ in matched})
    if len(kinds) > 1:
        ways.append(f"set runtime.kind in the model's headrace.toml to {' or '.join(map(repr, kinds))}")
    return f"found {listed(name for _, name in matched)}: which is the model? To decide, {', or '.join(ways)}"


def _nothing_found(names: Sequence[str], candidates: Sequence[Runtime]) -> str:
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        return (
            f"found {listed(pickles)}: loading a pickle or joblib file runs whatever code is in it, so "
            "it is refused; write the estimator with skops.io.dump(estimator, 'model.skops'), or call it "
            "model.joblib or model.pkl and start the server with --allow-code"
        )
    wanted = listed(dict.fromkeys(name for row in candidates for name in (row.file, row.pattern)))
    return f"no model found: expected {wanted}; the directory holds {listed(names) or 'no files'}"


def _module(runtime: Runtime) -> ModuleType:
    try:
        return importlib.import_module(runtime.module)
    except ImportError as error:
        way_out = f"pip install 'headrace[{runtime.extra}]'" if runtime.extra else "reinstall headrace"
        said = f"the {runtime.kind} runtime cannot be imported ({error}); {way_out}"
        # A missing package stays missing; a library that could not be mapped for lack of memory does not.
        kind = NotLoadable if isinstance(error, ModuleNotFoundError) else LoadError
        raise kind(said) from error


def _check_signature(signature: Signature, settings: SignatureSettings) -> None:
    if not signature.inputs:
        raise NotLoadable(
            "the model has no inputs, but needs one: the rows of a request are counted by an input"
        )
    for setting, output in (("scores", settings.scores), ("classes", settings.classes)):
        if output and output not in signature.output_names:
            raise NotLoadable(
                f"signature.{setting}: the model has no output {output!r}; "
                f"it has {listed(signature.output_names)}"
            )
