"""Model serving in milliseconds: batched and versioned, in process or over REST and gRPC."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.config import BatchingPolicy, ServerConfig
    from headrace.engine import Engine, ModelSpec
    from headrace.errors import HeadraceError
    from headrace.servable import Servable, Signature, TensorSpec
    from headrace.server import application

__version__ = "0.1.0"

__all__ = [
    "BatchingPolicy",
    "Engine",
    "HeadraceError",
    "ModelSpec",
    "Servable",
    "ServerConfig",
    "Signature",
    "TensorSpec",
    "__version__",
    "application",
]

_HOMES = {
    "BatchingPolicy": "headrace.config",
    "Engine": "headrace.engine",
    "HeadraceError": "headrace.errors",
    "ModelSpec": "headrace.engine",
    "Servable": "headrace.servable",
    "ServerConfig": "headrace.config",
    "Signature": "headrace.servable",
    "TensorSpec": "headrace.servable",
    "application": "headrace.server",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: errors and settings need neither NumPy nor the codecs."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(home), name)
