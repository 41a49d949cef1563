"""Write an object of this process into a directory of models, in its own framework's format."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace import endpoints
from headrace.base.errors import ConfigError, LoadError, shown
from headrace.cli import models
from headrace.cli.app_models import publish_endpoints
from headrace.config import MODEL_CONFIG_FILE, MODEL_NAME
from headrace.config.checks import wrong
from headrace.config.headrace_toml import A_MODEL_NAME
from headrace.config.server import ModelEntry
from headrace.runtimes.registry import recognised
from headrace.versions.layout import holds_versions, model_directories, version_number

_NAME = "model"
_ACCEPTED = (
    "a model of scikit-learn, LightGBM, XGBoost, CatBoost or Keras, an onnx.ModelProto, a "
    "torch.export.ExportedProgram, a function or class with annotations, or the path of a model's file, a "
    "directory of models or an app.py"
)
_FEWEST_CLASSES = 2  # boosted trees of one class answer one number
_LARGE_ONNX_BYTES = 2**30  # protobuf ends at 2 GiB
_MODEL = """from headrace.endpoints import model_given

Model = model_given({key!r})
"""


class Found(NamedTuple):
    """The models to serve.

    Attributes:
        directory: The directory of models; None for none.
        entries: Models outside of it.
        is_own_code: Whether the models are code of the caller's process, or of the named app.py.
        is_fixed: Whether there will be no further versions.
    """

    directory: Path | None
    entries: Mapping[str, ModelEntry] = {}
    is_own_code: bool = False
    is_fixed: bool = True


_Settings = Sequence[str]
"""Lines of a model's ``headrace.toml``."""


class _Format(NamedTuple):
    """How the objects of some classes are saved.

    Attributes:
        classes: Base classes, each with the package of its module: ``lightgbm.Booster``.
        file: The name of the file.
        save: Saves an object to a file, and returns the settings that the file lacks.
    """

    classes: tuple[str, ...]
    file: str
    save: Callable[[Any, Path], _Settings]


def find(model: object, name: str, draft: Path, undo: ExitStack) -> Found:
    """Find the models of a path, or save an object.

    Args:
        model: A path or an object.
        name: The model's name; empty for a usual one.
        draft: An empty directory, in which a directory of models may be made.
        undo: Gets a call for the time when the models are no longer served.

    Raises:
        ConfigError: The object is of no known kind, the path leads nowhere, or the name is wrong.
        LoadError: The object cannot be saved.
    """
    if name:
        _expect_name(name)
    if isinstance(model, (str, os.PathLike)):
        return _find_path(Path(model).absolute(), name, draft)
    _save(model, name, draft, undo)
    return Found(draft, is_own_code=True)


def _expect_name(name: str) -> str:
    if not MODEL_NAME.fullmatch(name):
        raise wrong("name", A_MODEL_NAME, name)
    return name


# --- paths ---


def _find_path(path: Path, name: str, draft: Path) -> Found:
    if not path.exists():
        raise ConfigError(f"model: {path} does not exist")
    if path.suffix == ".py":
        _expect_none(name, path)
        publish_endpoints(path.resolve(), draft, 1, as_guest=True)
        return Found(draft, is_own_code=True)
    if not models.is_directory(path):
        directory = _version(draft, name or path.stem)
        directory.mkdir()
        shutil.copyfile(path, directory / path.name)
        return Found(draft)
    if recognised(path, "") is not None:
        named = path if version_number(path.name) is None else path.parent
        shutil.copytree(path, _version(draft, name or named.name))
        return Found(draft)
    if holds_versions(path) and not model_directories(path):
        return Found(None, {_expect_name(name or path.name): ModelEntry(path=path)}, is_fixed=False)
    _expect_none(name, path)
    return Found(path, is_fixed=False)


def _expect_none(name: str, path: Path) -> None:
    if name:
        raise ConfigError(f"name: expected none, because the models of {path} have names; got {shown(name)}")


def _expect_no_number(name: str) -> str:
    if name.isdecimal():  # a directory with a number is a version
        raise wrong("name", f"{A_MODEL_NAME}, and not only digits", name)
    return name


def _version(draft: Path, name: str) -> Path:
    """Make the model's directory, and return that of its version."""
    (draft / _expect_no_number(_expect_name(name))).mkdir()
    return draft / name / "1"


# --- objects ---


def _save(model: object, name: str, draft: Path, undo: ExitStack) -> None:
    _expect_no_number(name)
    bases = {f"{one.__module__.partition('.')[0]}.{one.__name__}" for one in type(model).__mro__}
    for kind in _FORMATS:
        if not bases.isdisjoint(kind.classes):
            directory = _version(draft, name or _NAME)
            directory.mkdir()
            try:
                settings = kind.save(model, directory / kind.file)
                if settings:
                    (directory.parent / MODEL_CONFIG_FILE).write_text("\n".join(settings), "utf-8")
            except Exception as error:  # the boundary to the framework
                what = f"the {type(model).__name__} cannot be saved as {kind.file}"
                raise LoadError(f"{what}: {type(error).__name__}: {error}") from error
            return
    if not (inspect.isroutine(model) or isinstance(model, type)):
        way_out = "; export it with torch.export.export(…)" if "torch.Module" in bases else ""
        raise ConfigError(f"model: expected {_ACCEPTED}; got an object of {_class_of(model)}{way_out}")
    served, key = endpoints.give(model, name)
    undo.callback(endpoints.take_back, key)
    directory = _version(draft, served.name)
    directory.mkdir()
    (directory / "model.py").write_text(_MODEL.format(key=key), "utf-8")


def _class_of(model: object) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _save_model(model: Any, file: Path) -> _Settings:
    model.save_model(str(file))
    return ()


def _save_lightgbm_estimator(model: Any, file: Path) -> _Settings:
    model.booster_.save_model(str(file))
    is_probability = not callable(model.objective_)  # the file of an objective in Python answers raw scores
    return _class_names(model, top=1) if is_probability else ()


def _save_xgboost_estimator(model: Any, file: Path) -> _Settings:
    model.save_model(str(file))
    learner = json.loads(model.get_booster().save_config())["learner"]
    several_labels = int(learner["learner_model_param"]["num_target"]) > 1
    is_probability = model.objective in ("binary:logistic", "multi:softprob") and not several_labels
    return _class_names(model, top=1) if is_probability else ()


def _save_catboost(model: Any, file: Path) -> _Settings:
    model.save_model(str(file))
    return _class_names(model)


def _save_keras(model: Any, file: Path) -> _Settings:
    model.save(str(file))
    return ()


def _save_onnx(model: Any, file: Path) -> _Settings:
    import onnx  # noqa: PLC0415 - imported already by the caller, who has such an object

    weights = sum(len(one.raw_data) for one in model.graph.initializer)  # ByteSize() fails above 2 GiB
    saved = onnx.ModelProto()
    saved.CopyFrom(model)  # onnx moves weights that it saves beside the file out of the object
    onnx.save(saved, str(file), save_as_external_data=weights > _LARGE_ONNX_BYTES)
    return ()


def _save_torch(model: Any, file: Path) -> _Settings:
    import torch  # noqa: PLC0415 - as above

    torch.export.save(model, str(file))
    return ()


def _save_sklearn(model: Any, file: Path) -> _Settings:
    """Save an estimator, and trust its types: they are those of the caller's own object."""
    try:
        import skops.io  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise LoadError(f"{error}; pip install 'headrace[sklearn]'") from error
    skops.io.dump(model, file)
    trusted = skops.io.get_untrusted_types(file=file)
    return ("[runtime]", f"trusted = {_toml(trusted)}", *_class_names(model))


def _class_names(model: Any, top: int = 0) -> _Settings:
    """Return the settings that name the classes of a classifier; none for other models.

    Args:
        model: The model, fitted.
        top: Number of classes that each answer names; 0 if the runtime adds a label itself, or has none.
    """
    classes = getattr(model, "classes_", None)
    if not isinstance(classes, list | np.ndarray) or len(classes) < _FEWEST_CLASSES:
        return ()
    if any(np.ndim(one) for one in classes):  # the classes of several targets
        return ()
    return ("[signature]", f"labels = {_toml([str(one) for one in classes])}", f"top = {top}")


def _toml(texts: Sequence[str]) -> str:
    """Return a list of texts in TOML, which escapes one character more than JSON."""
    return json.dumps(texts, ensure_ascii=False).replace("\x7f", "\\u007f")


_FORMATS = (
    _Format(("lightgbm.Booster",), "model.txt", _save_model),
    _Format(("lightgbm.LGBMModel",), "model.txt", _save_lightgbm_estimator),
    _Format(("xgboost.Booster",), "model.ubj", _save_model),
    _Format(("xgboost.XGBModel",), "model.ubj", _save_xgboost_estimator),
    _Format(("catboost.CatBoost",), "model.cbm", _save_catboost),
    _Format(("keras.Model",), "model.keras", _save_keras),
    _Format(("onnx.ModelProto",), "model.onnx", _save_onnx),
    _Format(("torch.ExportedProgram",), "model.pt2", _save_torch),
    _Format(("sklearn.BaseEstimator",), "model.skops", _save_sklearn),
)
