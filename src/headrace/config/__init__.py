"""Settings: ``headrace.toml`` beside a model, and the server's ``--config FILE``.

Every setting is a field here, with its default and its check; ``docs/configuration.md`` is the same list in
prose. The same ``BatchingPolicy`` serves models in process and over the network.
"""

from headrace.config.access import AccessConfig
from headrace.config.headrace_toml import (
    A_MODEL_NAME,
    LABEL_NAME,
    LARGEST_VERSION,
    MODEL_CONFIG_FILE,
    MODEL_NAME,
    BatchingPolicy,
    CachePolicy,
    DefaultPolicy,
    InputSource,
    IsolationPolicy,
    ModelConfig,
    ObjectivePolicy,
    Option,
    RuntimeConfig,
    VersionPolicy,
    WarmUpPolicy,
    config_of_objects,
    parse_model_config,
    read_model_config,
)
from headrace.config.image_recipe import ImageConfig, Recipe
from headrace.config.server import (
    Cors,
    Limits,
    ModelEntry,
    ServerConfig,
    Tls,
    parse_server_config,
    read_server_config,
    server_config,
    with_flags,
)
from headrace.config.signature import SignatureConfig
from headrace.config.telemetry import AccessLog, Audit, Tracing
from headrace.config.toml_reader import Table

__all__ = [
    "A_MODEL_NAME",
    "AccessConfig",
    "AccessLog",
    "Audit",
    "BatchingPolicy",
    "Cors",
    "ImageConfig",
    "InputSource",
    "IsolationPolicy",
    "LABEL_NAME",
    "LARGEST_VERSION",
    "Limits",
    "MODEL_CONFIG_FILE",
    "MODEL_NAME",
    "ModelConfig",
    "ModelEntry",
    "ObjectivePolicy",
    "Option",
    "Recipe",
    "RuntimeConfig",
    "ServerConfig",
    "CachePolicy",
    "DefaultPolicy",
    "SignatureConfig",
    "Table",
    "Tls",
    "Tracing",
    "VersionPolicy",
    "WarmUpPolicy",
    "config_of_objects",
    "parse_model_config",
    "parse_server_config",
    "read_model_config",
    "read_server_config",
    "server_config",
    "with_flags",
]
