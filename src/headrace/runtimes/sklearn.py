"""scikit-learn estimators from skops files, which hold data and type names but no code, and from pickles.

An estimator fitted on a data frame, or on texts and numbers together, has one input per column. Others have
one input ``features`` with as many columns as the estimator was fitted on, or ``text`` if they take
documents. The option ``columns`` changes this. Outputs: ``label`` and, from classifiers that have them,
``probabilities``; regressors answer ``prediction``. Needs the extra ``sklearn``.
"""

from __future__ import annotations

import ast
import logging
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
import skops.io
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from headrace.base.errors import HeadraceError, InvalidRequest, LoadError, ModelError, NotLoadable
from headrace.base.tensors import BY_DTYPE, STRING, Array, Tensors
from headrace.config import MODEL_CONFIG_FILE
from headrace.model import misfits
from headrace.model.casting import DoesNotFit, cast
from headrace.model.servable import (
    DEFAULT_SIGNATURE,
    EXPLAIN_SIGNATURE,
    IS_GENERATED,
    Kind,
    Signature,
    TensorSpec,
)
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.sklearn_explanation import LinearExplanation, columns_of
from headrace.runtimes.sklearn_inputs import (
    NOT_FITTED,
    Estimator,
    Features,
    find_features,
    prepare,
    with_missing,
)

_log = logging.getLogger(__name__)

_FAILS = "the estimator fails on a row of zeros and texts, or of categories that it knows"
_OPTIONS: dict[str, type] = {"columns": bool, "datatype": str, "outputs": str}
_OUTPUTS = ("all", "label", "probabilities")

_UNKNOWN = re.compile(r"Found unknown categories (\[.*\]) in column \d+")
_SCALAR = re.compile(r"np\.\w+\(([^()]*)\)")
_NAMED = "use one that is defined at the top level of a module which the server can import, and save it again"
_TRUSTED_TYPES = "trusted_types.txt"
_USUAL_TYPES = frozenset(
    {
        "builtins.object",
        "numpy.dtype",
        "numpy.number",
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.compose._column_transformer.make_column_selector",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    }
)
"""Types of usual estimators that skops does not trust, although making them runs no code of the file's."""

_Predict = Callable[[Any], Any]
_Made = TypeVar("_Made")


def load(file: Path, options: RuntimeOptions) -> SklearnServable:
    """Load an estimator.

    Args:
        file: A file written by ``skops.io.dump``; or a pickle, also of joblib, if code may run.
        options: The operator's settings; docs/runtimes.md lists the options.

    Raises:
        LoadError: The file is damaged, contains untrusted types, or does not predict rows.
    """
    options.check_known(_OPTIONS)
    if file.suffix == ".skops":
        estimator = _read(file, (*options.trusted, *_types_of_version(file, options)))
    else:
        estimator = _unpickled(file, options)
    if not (hasattr(estimator, "predict") and hasattr(estimator, "get_params")):
        raise NotLoadable(
            f"{file.name}: expected an estimator with predict(), got {type(estimator).__name__}",
            told=f"{file.name}: expected an estimator with predict()",
        )
    features = find_features(estimator, options)
    columns = _if_possible(columns_of, estimator, features)
    prepare(estimator)
    outputs = _outputs(estimator, str(options.options.get("outputs", "all")))
    try:
        given = features.join(features.sample)
        answers = {name: np.asarray(call(given)) for name, call in outputs.items()}
    except NotFittedError:
        raise NotLoadable(NOT_FITTED) from None
    except Exception as error:  # the boundary to the estimator's own code
        raise LoadError(
            f"{_FAILS}: {type(error).__name__}: {error}", told=f"{_FAILS}; the server's log says more"
        ) from error
    features = with_missing(features, next(iter(outputs.values())))
    signature = Signature(
        DEFAULT_SIGNATURE,
        features.specs,
        tuple(_output_spec(name, answer) for name, answer in answers.items()),
        kind=_kind(estimator, options.signature.kind),
        sample=features.sample,
    )
    servable = SklearnServable(signature, features, outputs, options.threads)
    if columns is not None:
        explanation = _if_possible(LinearExplanation, estimator, features, columns, given)
        if explanation is not None:
            servable.explain_with(explanation)
    return servable


def _refusal(error: ValueError, inputs: Tensors) -> InvalidRequest:
    """Return the error for a row that the estimator refuses; it names the input of an unknown category.

    An encoder counts the columns that it gets, so its number says nothing to the caller.

    Args:
        error: The refusal.
        inputs: The inputs of the call.
    """
    # The lines after the first advise the model's author, and name its classes.
    said = str(error).partition("\n")[0]
    found = _UNKNOWN.match(said)
    places = [] if found is None else _places_of(found[1], inputs)
    if len(places) != 1:  # several inputs have such a value
        return InvalidRequest(f"the estimator refuses a row: {said}", field="inputs")
    ((name, place),) = places
    value = inputs[name][place]
    shown_value = misfits.said(value.decode(errors="replace") if isinstance(value, bytes) else value.item())
    return InvalidRequest(
        f"{misfits.position(place)}expected a category that the estimator was fitted on, got {shown_value}; "
        "send one of those, or fit the encoder with handle_unknown='ignore'",
        field=name,
    )


def _places_of(listed: str, inputs: Tensors) -> list[tuple[str, tuple[int, ...]]]:
    """Return the inputs that have one of the listed values, each with its first place."""
    try:
        wanted = set(ast.literal_eval(_SCALAR.sub(r"\1", listed)))
    except (ValueError, SyntaxError, TypeError):
        return []
    wanted |= {one.encode(errors="replace") for one in wanted if isinstance(one, str)}
    places = []
    for name, column in inputs.items():
        for number, value in enumerate(column.ravel().tolist()):
            if value in wanted:
                places.append((name, tuple(map(int, np.unravel_index(number, column.shape)))))
                break
    return places


def _if_possible(make: Callable[..., _Made], *arguments: object) -> _Made | None:
    """Return a part of an explanation; None if making it fails, as the model predicts without one."""
    try:
        return make(*arguments)
    except Exception:  # noqa: BLE001 - the boundary to the estimator's own code
        _log.debug("an estimator has no explanations", exc_info=True)
        return None


class SklearnServable:
    """A fitted estimator."""

    platform = "sklearn_skops"

    def __init__(
        self, signature: Signature, features: Features, outputs: Mapping[str, _Predict], threads: int
    ) -> None:
        """Bind an estimator's methods to outputs.

        Args:
            signature: Its signature.
            features: Converts inputs to features.
            outputs: The method that computes each output.
            threads: Maximum number of threads per call.
        """
        self.signatures: Mapping[str, Signature] = {signature.name: signature}
        self._features = features
        self._outputs = dict(outputs)
        self._specs = {spec.name: spec for spec in signature.outputs}
        self._pools = _Pools(threads)

    def explain_with(self, explanation: LinearExplanation) -> None:
        """Add the signature ``explain``; before the first call."""
        self._explanation = explanation
        self.signatures = {**self.signatures, EXPLAIN_SIGNATURE: explanation.signature}

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict or explain a whole batch.

        Args:
            inputs: Every input, checked.
            signature: The name of the signature.

        Raises:
            InvalidRequest: A document is not UTF-8, or the estimator refuses a value.
            ModelError: The estimator failed.
        """
        self._pools.limit()
        try:
            given = self._features.join(inputs)
            if signature == EXPLAIN_SIGNATURE:
                return self._explanation.outputs(given)
            return {name: _as_output(self._specs[name], call(given)) for name, call in self._outputs.items()}
        except HeadraceError:
            raise
        except ValueError as error:  # scikit-learn refuses values this way, such as an unknown category
            raise _refusal(error, inputs) from error
        except Exception as error:  # the boundary to the estimator's own code
            level = logging.DEBUG if IS_GENERATED.get() else logging.ERROR
            _log.log(level, "predict of an estimator failed", exc_info=True)
            said = f"the estimator raised {type(error).__name__}; the server's log says more"
            raise ModelError(said, told="the estimator failed; the server's log says more") from error

    def close(self) -> None:
        """Free the estimator."""
        self._outputs.clear()


class _Pools:
    """Limits the thread pools of linear algebra libraries.

    BLAS has one pool per process, so the last limit applies to all. OpenMP has a limit per calling thread, so
    it is set once in every thread.
    """

    _in_thread = threading.local()

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._controller = ThreadpoolController()

    def limit(self) -> None:
        if getattr(self._in_thread, "threads", None) != self._threads:
            self._controller.limit(limits=self._threads)
            self._in_thread.threads = self._threads


def _types_of_version(file: Path, options: RuntimeOptions) -> tuple[str, ...]:
    """Return the types that a version with a verified signature trusts itself."""
    listed = file.with_name(_TRUSTED_TYPES)
    if not options.is_verified or not listed.exists():
        return ()
    try:
        return tuple(listed.read_text("utf-8").split())
    except (OSError, ValueError) as error:
        raise LoadError(
            f"{_TRUSTED_TYPES} cannot be read: {error}", told=f"{_TRUSTED_TYPES} cannot be read"
        ) from error


def _read(file: Path, trusted: tuple[str, ...]) -> Estimator:
    try:
        types = skops.io.get_untrusted_types(file=file)
        _expect_names(file, types)
        unknown = [name for name in types if name not in trusted and name not in _USUAL_TYPES]
        if unknown:
            raise NotLoadable(_untrusted(file, unknown, trusted))
        return skops.io.load(file, trusted=types)
    except LoadError:
        raise
    except BadZipFile as error:
        raise LoadError(
            f"{file.name} is cut or damaged, or no skops file ({error}); copy it again, or write it with "
            f"skops.io.dump(estimator, {file.name!r})"
        ) from error
    except Exception as error:  # the boundary to skops, which passes on errors of zipfile, json and NumPy
        raise LoadError(
            f"cannot read {file.name} as a skops file: {type(error).__name__}: {error}{_way_out(error)}",
            told=f"cannot read {file.name} as a skops file; the server's log says more",
        ) from error


def _way_out(error: Exception) -> str:
    is_missing = isinstance(error, AttributeError) and isinstance(error.obj, ModuleType)
    if not (is_missing or isinstance(error, ImportError)):
        return ""
    return (
        f"; install the package that has it, in the release that saved the file. Of your own code, {_NAMED}"
    )


def _expect_names(file: Path, types: list[str]) -> None:
    """Refuse lambdas, which nobody can find by their name."""
    nameless = [name for name in types if "<lambda>" in name]
    if nameless:
        found = f"{file.name} holds a function without a name, {nameless[0]}"
        raise NotLoadable(f"{found}, which cannot be found again; {_NAMED}")


def _unpickled(file: Path, options: RuntimeOptions) -> Estimator:
    options.expect_code_allowed(
        f"{file.name}: loading a pickle runs whatever code is in it, so it is refused; write the estimator "
        "with skops.io.dump(estimator, 'model.skops')"
    )
    import joblib  # noqa: PLC0415 - only where code may run

    try:
        return joblib.load(file)
    except Exception as error:  # the boundary to whatever code is in the file
        raise LoadError(
            f"cannot load {file.name}: {type(error).__name__}: {error}",
            told=f"cannot load {file.name}; the server's log says more",
        ) from error


def _untrusted(file: Path, unknown: list[str], trusted: tuple[str, ...]) -> str:
    model = file.parent.parent.name  # no more of the path: clients read this, too
    line = ", ".join(f'"{type_name}"' for type_name in (*trusted, *unknown))
    return (
        f"{file.name} holds types that are not trusted: {', '.join(unknown)}. Loading makes objects of "
        "these types from the file's contents, which may run their code or, with forged contents, crash the "
        "process: trust them only if you know them and who wrote the file. To trust them, list them in the "
        f"{_TRUSTED_TYPES} of a signed version, or put into {model}/{MODEL_CONFIG_FILE}, beside the "
        f"versions' directories, under [runtime]: trusted = [{line}]"
    )


def _outputs(estimator: Estimator, wanted: str) -> dict[str, _Predict]:
    if wanted not in _OUTPUTS:
        raise NotLoadable(f"runtime.options.outputs: expected {', '.join(_OUTPUTS)}, got {wanted!r}")
    if is_regressor(estimator):
        found = {"prediction": estimator.predict}
    else:
        found = {"label": estimator.predict}
        # Classifiers with several targets return a list of arrays, which are not rows.
        if hasattr(estimator, "predict_proba") and not isinstance(getattr(estimator, "classes_", None), list):
            found["probabilities"] = estimator.predict_proba
    if wanted != "all" and wanted not in found:
        raise NotLoadable(f"runtime.options.outputs: the estimator has {', '.join(found)}, not {wanted!r}")
    return {name: call for name, call in found.items() if wanted in ("all", name)}


def _kind(estimator: Estimator, chosen: Kind) -> Kind:
    if chosen != "predict":
        return chosen
    if is_classifier(estimator):
        return "classify"
    return "regress" if is_regressor(estimator) else "predict"


def _output_spec(name: str, answer: Array) -> TensorSpec:
    dtype = STRING if answer.dtype.kind in "OUS" else answer.dtype
    if dtype not in BY_DTYPE or answer.ndim == 0:
        raise NotLoadable(
            f"output {name!r} is {answer.dtype} {list(answer.shape)}, which no answer can carry"
        )
    return TensorSpec(name, dtype, answer.shape[1:])


def _as_output(spec: TensorSpec, answer: Any) -> Array:
    if spec.dtype != STRING:
        try:
            return cast(np.asarray(answer), spec.dtype)
        except DoesNotFit as error:
            raise ModelError(f"the output {spec.name!r} of the estimator: {error}") from None
    array = np.asarray(answer)
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in array.flat]
    return np.array(texts, dtype=object).reshape(array.shape)
