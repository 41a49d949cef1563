"""Model serving in milliseconds: batched and versioned, in process or over REST and gRPC."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.base.errors import HeadraceError, InvalidRequest
    from headrace.client.client import Client
    from headrace.config import BatchingPolicy, ServerConfig
    from headrace.endpoints import endpoint
    from headrace.model.servable import Servable, Signature, TensorSpec
    from headrace.notebook.local_server import serve
    from headrace.server.server import application
    from headrace.serving.engine import Engine, ModelSpec

__version__ = "0.1.0"

__all__ = [
    "BatchingPolicy",
    "Client",
    "Engine",
    "HeadraceError",
    "InvalidRequest",
    "ModelSpec",
    "Servable",
    "ServerConfig",
    "Signature",
    "TensorSpec",
    "__version__",
    "application",
    "endpoint",
    "serve",
]

_HOMES = {
    "BatchingPolicy": "headrace.config",
    "Client": "headrace.client.client",
    "Engine": "headrace.serving.engine",
    "HeadraceError": "headrace.base.errors",
    "InvalidRequest": "headrace.base.errors",
    "ModelSpec": "headrace.serving.engine",
    "Servable": "headrace.model.servable",
    "ServerConfig": "headrace.config",
    "Signature": "headrace.model.servable",
    "TensorSpec": "headrace.model.servable",
    "application": "headrace.server.server",
    "endpoint": "headrace.endpoints",
    "serve": "headrace.notebook.local_server",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: errors and settings need neither NumPy nor the codecs."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(home), name)
