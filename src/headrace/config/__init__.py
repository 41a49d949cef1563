"""Settings: ``headrace.toml`` beside a model, and the server's ``--config FILE``.

Every setting is a field here, with its default and its check; ``docs/configuration.md`` is the same list in
prose. The same ``BatchingPolicy`` serves models in process and over the network.
"""

from headrace.config.model import (
    LABEL_NAME,
    LARGEST_VERSION,
    MODEL_CONFIG_FILE,
    MODEL_NAME,
    BatchingPolicy,
    CachePolicy,
    DefaultPolicy,
    InputSource,
    ModelConfig,
    Option,
    RuntimeConfig,
    SignatureConfig,
    VersionPolicy,
    WarmUpPolicy,
    parse_model_config,
    read_model_config,
)
from headrace.config.reading import Table
from headrace.config.server import (
    Limits,
    ModelEntry,
    ServerConfig,
    parse_server_config,
    read_server_config,
    server_config,
    with_flags,
)

__all__ = [
    "BatchingPolicy",
    "InputSource",
    "LABEL_NAME",
    "LARGEST_VERSION",
    "Limits",
    "MODEL_CONFIG_FILE",
    "MODEL_NAME",
    "ModelConfig",
    "ModelEntry",
    "Option",
    "RuntimeConfig",
    "ServerConfig",
    "CachePolicy",
    "DefaultPolicy",
    "SignatureConfig",
    "Table",
    "VersionPolicy",
    "WarmUpPolicy",
    "parse_model_config",
    "parse_server_config",
    "read_model_config",
    "read_server_config",
    "server_config",
    "with_flags",
]
