"""``headrace archive serve``: serve lookups over REST and gRPC, without models."""

from __future__ import annotations

import argparse

import msgspec

from headrace.cli import common, serve
from headrace.cli.archive import archive_options
from headrace.config import ServerConfig, server_config, with_flags

_OF_MODELS = {
    "poll_seconds", "load_threads", "allow_code", "tensorflow_metrics", "triton_metrics", "load_reports",
    "archive", "isolate",
}  # fmt: skip
_SETTINGS = [key for key in serve.SETTINGS if key not in _OF_MODELS and not key.startswith("limits.")]
_OWN_KEYS = [name for name in ServerConfig.__struct_fields__ if name not in {*_OF_MODELS, "models"}]


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="serve",
            help="answer lookups over REST and gRPC, without models",
            description="Serve only an archive, for example to several teams; headrace serve DIR --archive "
            "FILE serves it beside models.",
            examples="examples:\n  headrace archive serve\n"
            "  headrace archive serve --archive shop/archive.toml --host 0.0.0.0",
            failure="the server cannot continue",
            run=run,
            own_keys=_OWN_KEYS,
            own_help=", and [limits], [tls], [access], [cors], [tracing], [access_log] and [audit]",
        ),
    )
    archive_options.add_archive(parser)
    serve.add_settings(parser, _SETTINGS)


def run(options: argparse.Namespace) -> int:
    """Serve until stopped by a signal."""
    config = _config(options)
    archive_options.settings_of(options)  # validate the settings before anything starts
    options.models = None
    return serve.serve(options, msgspec.structs.replace(config, archive=options.archive))


def _config(options: argparse.Namespace) -> ServerConfig:
    config = ServerConfig()
    if options.config is not None:
        config = server_config(options.own_settings, str(options.config), options.config.absolute().parent)
    return with_flags(config, **{key: getattr(options, key) for key in _SETTINGS})
