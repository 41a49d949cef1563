"""Choose ONNX Runtime's execution providers: the processor, or an accelerator that its build knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnxruntime

from headrace.base.errors import LoadError, NotLoadable, listed
from headrace.runtimes.options import Option

_PROVIDERS = {
    "cpu": ("CPUExecutionProvider", "onnxruntime"),
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu"),
    "tensorrt": ("TensorrtExecutionProvider", "onnxruntime-gpu"),
    "openvino": ("OpenVINOExecutionProvider", "onnxruntime-openvino"),
    "coreml": ("CoreMLExecutionProvider", "onnxruntime, on macOS"),
}
"""The name and the package of each provider, by its name in settings."""
OPTION = "providers"

Provider = tuple[str, dict[str, str]]


def provider_options(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return the options of providers, such as ``cuda.device_id``."""
    return {name: value for name, value in options.items() if name.partition(".")[0] in _PROVIDERS}


def find_providers(options: Mapping[str, Option]) -> list[Provider]:
    """Return the chosen providers with their options, first the preferred one; the processor is always last.

    Args:
        options: The options of the runtime.

    Raises:
        NotLoadable: A provider is unknown, not in the installed build, or has options without being chosen.
    """
    chosen = [name.strip() for name in str(options.get(OPTION, "cpu")).split(",")]
    if unknown := [name for name in chosen if name not in _PROVIDERS]:
        raise NotLoadable(
            f"runtime.options.providers: expected some of {listed(_PROVIDERS)}, separated by commas, "
            f"got {unknown[0]!r}"
        )
    available = onnxruntime.get_available_providers()
    for name in chosen:
        provider, package = _PROVIDERS[name]
        if provider not in available:
            has = listed(one for one, (known, _) in _PROVIDERS.items() if known in available)
            raise NotLoadable(
                f"runtime.options.providers: the installed ONNX Runtime has {has}, not {name}; replace it: "
                f"pip uninstall onnxruntime, then pip install {package}"
            )
    settings: dict[str, dict[str, str]] = {name: {} for name in dict.fromkeys([*chosen, "cpu"])}
    for option, value in provider_options(options).items():
        name, _, key = option.partition(".")
        if name not in settings:
            raise NotLoadable(f"runtime.options.{option}: runtime.options.providers does not choose {name}")
        settings[name][key] = str(int(value) if isinstance(value, bool) else value)
    settings["cpu"] = settings.pop("cpu")  # it computes whatever the others cannot
    return [(_PROVIDERS[name][0], given) for name, given in settings.items()]


def expect_providers(session: onnxruntime.InferenceSession, wanted: Sequence[Provider]) -> None:
    """Refuse a session without a chosen provider: ONNX Runtime falls back to the processor with a warning.

    Raises:
        LoadError: A provider did not start, such as CUDA without a GPU or its libraries.
    """
    missing = [name for name, _ in wanted if name not in session.get_providers()]
    if missing:
        raise LoadError(
            f"ONNX Runtime could not start {listed(missing)}: check the device, its driver and its libraries "
            "(the error output has ONNX Runtime's reason), or leave it out of runtime.options.providers"
        )
