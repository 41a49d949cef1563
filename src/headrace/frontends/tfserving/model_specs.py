"""The version and signature that a request asks for, and the ``model_spec`` of an answer."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import InvalidRequest, NotFound
from headrace.frontends.wire import protos
from headrace.model.servable import Signature, signature_named

if TYPE_CHECKING:
    from headrace.frontends.service import Service
    from headrace.serving.loaded_version import LoadedVersion

_LARGEST_VERSION = (1 << 63) - 1


class ModelChoice(NamedTuple):
    """The model that a request asks for.

    Attributes:
        model: Name of the model.
        version: Version number, or None.
        label: A label, or None; with neither, the default version is used.
        signature: Name of the signature, or "" for the default one.
    """

    model: str
    version: int | None = None
    label: str | None = None
    signature: str = ""


def choice(request: protos.Message) -> ModelChoice:
    """Read a message's ``model_spec``.

    Raises:
        InvalidRequest: It names no model.
    """
    spec = request.model_spec
    if not spec.name:
        raise InvalidRequest("expected the model's name, got none; set it", field="model_spec.name")
    return ModelChoice(
        spec.name,
        spec.version.value if spec.HasField("version") else None,
        spec.version_label or None,
        spec.signature_name,
    )


@lru_cache(1024)  # clients use few distinct paths
def path_choice(model: str, version: str | None, label: str | None) -> ModelChoice:
    """Read the parts of a path.

    Raises:
        InvalidRequest: The version is not a number, or is combined with a label.
    """
    if version is not None and label is not None:
        raise InvalidRequest(
            f"both version {version!r:.40} and label {label!r:.40} are given; give one of them",
            field="version",
        )
    if version is None:
        return ModelChoice(model, None, label)
    digits = version.isascii() and version.isdigit() and len(version) <= len(str(_LARGEST_VERSION))
    if not digits or int(version) > _LARGEST_VERSION:
        raise InvalidRequest(f"expected a version's number, got {version!r:.40}", field="version")
    return ModelChoice(model, int(version))


def find(service: Service, chosen: ModelChoice) -> LoadedVersion:
    """Return the loaded version that a request asks for.

    Raises:
        HeadraceError: There is no such version, or it is not available now.
    """
    return service.loaded(chosen.model, chosen.version, chosen.label)


def find_signature(loaded: LoadedVersion, name: str) -> Signature:
    """Return the signature that a request asks for.

    Raises:
        InvalidRequest: There is none of that name; TensorFlow Serving calls that an invalid argument too.
    """
    try:
        return signature_named(loaded.signatures, name)
    except NotFound as error:
        raise InvalidRequest(error.message, field="signature_name") from error


def answered(loaded: LoadedVersion, signature: str = "") -> dict[str, object]:
    """Return the fields of an answer's ``model_spec``, with the version that answered."""
    return {"name": loaded.name, "version": {"value": loaded.version}, "signature_name": signature}
