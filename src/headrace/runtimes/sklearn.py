"""scikit-learn estimators from skops files, which hold data and type names but no code.

One input: ``features`` of as many columns as the estimator was fitted on; ``text`` for estimators that take
documents; or, with the option ``columns``, one input for each named column. Outputs: ``label`` and, from
classifiers that have them, ``probabilities``; regressors answer ``prediction``. Needs the extra ``sklearn``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import skops.io
from sklearn.base import is_classifier, is_regressor
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from headrace.errors import HeadraceError, InvalidRequest, LoadError, ModelError
from headrace.runtimes.options import RuntimeOptions
from headrace.servable import DEFAULT_SIGNATURE, Kind, Signature, TensorSpec
from headrace.tensors import BY_DTYPE, BY_OIP, STRING, Array, Tensors

_log = logging.getLogger(__name__)

_OPTIONS: dict[str, type] = {"columns": bool, "datatype": str, "outputs": str}
_OUTPUTS = ("all", "label", "probabilities")

Estimator = Any  # scikit-learn ships no types
_Predict = Callable[[Any], Any]


def load(file: Path, options: RuntimeOptions) -> SklearnServable:
    """Load an estimator.

    Args:
        file: A file written by ``skops.io.dump``.
        options: The operator's settings; docs/runtimes.md lists the options.

    Raises:
        LoadError: It is damaged, holds types that nobody trusted, or does not predict rows.
    """
    options.check_known(_OPTIONS)
    estimator = _read(file, options.trusted)
    if not (hasattr(estimator, "predict") and hasattr(estimator, "get_params")):
        raise LoadError(f"{file.name}: expected an estimator with predict(), got {type(estimator).__name__}")
    _keep_to_one_job(estimator)
    features = _features(estimator, options)
    outputs = _outputs(estimator, str(options.options.get("outputs", "all")))
    try:
        given = features.join({spec.name: _one_row(spec) for spec in features.specs})
        answers = {name: np.asarray(call(given)) for name, call in outputs.items()}
    except Exception as error:  # the boundary to the estimator's own code
        raise LoadError(
            f"the estimator fails on a row of zeros or an empty text: {type(error).__name__}: {error}; "
            "if it selects columns by name, let it select them by position"
        ) from error
    signature = Signature(
        DEFAULT_SIGNATURE,
        features.specs,
        tuple(_output_spec(name, answer) for name, answer in answers.items()),
        kind=_kind(estimator, options.signature.kind),
    )
    return SklearnServable(signature, features, outputs, options.threads)


@dataclass(frozen=True, slots=True)
class Features:
    """How the inputs become what the estimator is given.

    Attributes:
        specs: The inputs.
        text: Whether the estimator takes documents.
    """

    specs: tuple[TensorSpec, ...]
    text: bool = False

    def join(self, inputs: Tensors) -> Array | list[str]:
        """Make a matrix, or a list of documents.

        Args:
            inputs: The inputs.

        Raises:
            InvalidRequest: A document is not UTF-8.
        """
        first = inputs[self.specs[0].name]
        if self.text:
            try:
                return [document.decode() for document in first]
            except UnicodeDecodeError as error:
                wrong = error.object[:40]
                raise InvalidRequest(
                    f"expected UTF-8 text, got {wrong!r}", field=self.specs[0].name
                ) from error
        if len(self.specs) == 1 and first.ndim > 1:
            return first
        return np.stack([inputs[spec.name] for spec in self.specs], axis=1)


class SklearnServable:
    """A fitted estimator."""

    platform = "sklearn_skops"

    def __init__(
        self, signature: Signature, features: Features, outputs: Mapping[str, _Predict], threads: int
    ) -> None:
        """Bind an estimator's methods to outputs.

        Args:
            signature: Its signature.
            features: How inputs become features.
            outputs: The method that answers each output.
            threads: How many threads one call may use.
        """
        self.signatures: Mapping[str, Signature] = {signature.name: signature}
        self._features = features
        self._outputs = dict(outputs)
        self._specs = {spec.name: spec for spec in signature.outputs}
        self._pools = _Pools(threads)

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Answer a whole batch.

        Args:
            inputs: Every input, checked.
            signature: There is only the default one.

        Raises:
            InvalidRequest: A document is not UTF-8.
            ModelError: The estimator failed.
        """
        self._pools.limit()
        try:
            given = self._features.join(inputs)
            return {name: _as_output(self._specs[name], call(given)) for name, call in self._outputs.items()}
        except HeadraceError:
            raise
        except Exception as error:  # the boundary to the estimator's own code
            _log.exception("predict of an estimator failed")
            said = f"the estimator raised {type(error).__name__}; the server's log says more"
            raise ModelError(said) from error

    def close(self) -> None:
        """Free the estimator."""
        self._outputs.clear()


class _Pools:
    """Keeps the thread pools of linear algebra to a number of threads.

    BLAS has one pool for the process, so the last limit counts for all; OpenMP has a limit for each calling
    thread, so it is set in every thread once.
    """

    _in_thread = threading.local()

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._controller = ThreadpoolController()

    def limit(self) -> None:
        if getattr(self._in_thread, "threads", None) != self._threads:
            self._controller.limit(limits=self._threads)
            self._in_thread.threads = self._threads


def _read(file: Path, trusted: tuple[str, ...]) -> Estimator:
    try:
        unknown = [name for name in skops.io.get_untrusted_types(file=file) if name not in trusted]
        if unknown:
            raise LoadError(_untrusted(file.name, unknown, trusted))
        return skops.io.load(file, trusted=list(trusted))
    except LoadError:
        raise
    except Exception as error:  # the boundary to skops, which raises what zipfile, json and NumPy do
        raise LoadError(
            f"cannot read {file.name} as a skops file: {type(error).__name__}: {error}"
        ) from error


def _untrusted(name: str, unknown: list[str], trusted: tuple[str, ...]) -> str:
    line = ", ".join(f'"{type_name}"' for type_name in (*trusted, *unknown))
    return (
        f"{name} holds types that nobody has trusted yet: {', '.join(unknown)}. Loading makes objects of "
        "these types from the file's contents, which may run their code or, with forged contents, crash the "
        "process: trust them only if you know them and who wrote the file. To do so, put into headrace.toml "
        f"beside the model, under [runtime]: trusted = [{line}]"
    )


def _keep_to_one_job(estimator: Estimator) -> None:
    """Forget ``n_jobs`` of training: starting threads for each request costs more than they save."""
    jobs = {name: None for name in estimator.get_params() if name.rpartition("__")[2] == "n_jobs"}
    if jobs:
        estimator.set_params(**jobs)


def _features(estimator: Estimator, options: RuntimeOptions) -> Features:
    datatype = str(options.options.get("datatype", "FP64"))
    if datatype not in ("FP32", "FP64"):
        raise LoadError(f"runtime.options.datatype: expected FP32 or FP64, got {datatype!r}")
    count = getattr(estimator, "n_features_in_", None)
    if count is None:
        return Features((TensorSpec("text", STRING, ()),), text=True)
    names = getattr(estimator, "feature_names_in_", None)
    _forget_names(estimator)
    dtype = BY_OIP[datatype].dtype
    if not options.options.get("columns", False):
        return Features((TensorSpec("features", dtype, (int(count),)),))
    if names is None:
        raise LoadError(
            "runtime.options.columns: the estimator was fitted without column names (feature_names_in_); "
            "fit it on a data frame, or leave the option out and send 'features'"
        )
    return Features(tuple(TensorSpec(str(name), dtype, ()) for name in names))


def _forget_names(estimator: Estimator) -> None:
    """Spare each prediction the warning that an array has no column names: the signature has checked them."""
    for part in (estimator, *estimator.get_params().values()):
        if hasattr(part, "__dict__"):
            vars(part).pop("feature_names_in_", None)


def _outputs(estimator: Estimator, wanted: str) -> dict[str, _Predict]:
    if wanted not in _OUTPUTS:
        raise LoadError(f"runtime.options.outputs: expected {', '.join(_OUTPUTS)}, got {wanted!r}")
    if is_regressor(estimator):
        found = {"prediction": estimator.predict}
    else:
        found = {"label": estimator.predict}
        # Classifiers with several targets give a list of arrays, which are no rows.
        if hasattr(estimator, "predict_proba") and not isinstance(getattr(estimator, "classes_", None), list):
            found["probabilities"] = estimator.predict_proba
    if wanted != "all" and wanted not in found:
        raise LoadError(f"runtime.options.outputs: the estimator has {', '.join(found)}, not {wanted!r}")
    return {name: call for name, call in found.items() if wanted in ("all", name)}


def _kind(estimator: Estimator, chosen: Kind) -> Kind:
    if chosen != "predict":
        return chosen
    if is_classifier(estimator):
        return "classify"
    return "regress" if is_regressor(estimator) else "predict"


def _one_row(spec: TensorSpec) -> Array:
    if spec.dtype == STRING:
        return np.array([b""], dtype=object)
    return np.zeros((1, *(size or 0 for size in spec.shape)), spec.dtype)


def _output_spec(name: str, answer: Array) -> TensorSpec:
    dtype = STRING if answer.dtype.kind in "OUS" else answer.dtype
    if dtype not in BY_DTYPE or answer.ndim == 0:
        raise LoadError(f"output {name!r} is {answer.dtype} {list(answer.shape)}, which no answer can carry")
    return TensorSpec(name, dtype, answer.shape[1:])


def _as_output(spec: TensorSpec, answer: Any) -> Array:
    if spec.dtype != STRING:
        return np.asarray(answer, spec.dtype)
    array = np.asarray(answer)
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in array.flat]
    return np.array(texts, dtype=object).reshape(array.shape)
