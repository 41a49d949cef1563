"""``headrace train FILE|-``: learn a click model from a stream, continuously, and publish its versions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError, needs_extra
from headrace.cli import auditing, common, models, number_types
from headrace.cli.metrics_port_option import add_metrics
from headrace.cli.stream_publish import add_kafka_config
from headrace.config import checks
from headrace.ctr.model_settings import DEEP, KINDS, OPTIMIZERS, ModelSettings, forgetting_of

if TYPE_CHECKING:
    from headrace.training.options import TrainOptions

_EXAMPLES = """examples:
  headrace stream generate --rows 1000000 --seed 1 | headrace train --model deepfm
  headrace train clicks.arrows --model ffm --publish models/ctr --every-rows 100000
  producer | headrace train - --publish models/ctr --every-seconds 60 --checkpoint saved --resume
  headrace train kafka://localhost:9092/clicks --publish models/ctr --every-seconds 60 --checkpoint saved
  headrace train clicks.arrows --search search.toml > best.toml
  headrace train clicks.arrows --config best.toml --plot run.png

docs/training.md explains every option and the output."""

_MEBIBYTE = 2**20
_ADAM_RATE = 0.001
_HIGHEST_RATE = 1e6
_MOST_MEBIBYTES = 2**30
_MOST_VERSIONS = 1_000_000
_OF_VERSIONS = ("quantize", "patch", "replace", "server_config", "signing_key", "audit_file")
_MODELS = (*KINDS, "keras")


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="train",
            help="learn a click model from a stream and publish its versions",
            description="Learn a click model from a stream of rows: each is predicted, the prediction is "
            "scored, then the model learns from it. Standard output has one JSON object per line: one for "
            "each window of rows, unless standard output and standard error are both terminals, and at the "
            "end one for the run. With --json, only the last one is written.",
            examples=_EXAMPLES,
            failure="the stream is cut or corrupt, the model diverged, something could not be written, or "
            "a search excludes every configuration",
            run=run,
            own_keys=ModelSettings.__struct_fields__,
            own_help=", and the structure of the model",
            other_codes="; 143 ended by SIGTERM",
        ),
    )
    parser.add_argument(
        "input", metavar="FILE", nargs="?", default="-", help="the stream; - for standard input (default)"
    )
    _add_model(parser)
    _add_stream(parser)
    _add_publication(parser)
    _add_reports(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument("--model", choices=_MODELS, help="its kind (default deepfm)")
    group.add_argument(
        "--factors",
        type=number_types.whole("factors"),
        metavar="N",
        help="the length of an embedding (default 8)",
    )
    group.add_argument(
        "--hidden",
        action="append",
        metavar="N,N",
        help="the widths of the network's layers (default 128,64)",
    )
    group.add_argument(
        "--components",
        type=number_types.whole("components", least=1, most=64),
        metavar="N",
        help="how many Beta distributions an mdn mixes (default 3)",
    )
    group.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help="of linear weights and embeddings (default forgetting; adagrad with --learning-rate alone)",
    )
    group.add_argument(
        "--learning-rate",
        type=number_types.above_zero("learning-rate", most=_HIGHEST_RATE),
        metavar="R",
        help="of linear weights and embeddings (defaults with forgetting: 0.2 and 0.1; in a deepfm or mdn "
        "0.1 and 0.1; in a deepffm 0.1 and 0.07. With adam and lazy_adam 0.001, with others 0.05)",
    )
    group.add_argument(
        "--interaction", action="append", metavar="A*B", default=[], help="a pair of fields; may be repeated"
    )
    group.add_argument(
        "--batch-rows",
        type=number_types.whole("batch-rows"),
        metavar="N",
        help="how many rows are learnt from at a time (default 1024)",
    )
    group.add_argument(
        "--threads",
        type=number_types.whole("threads"),
        metavar="N",
        help="how many threads learn (default 1)",
    )
    group.add_argument(
        "--seed",
        type=number_types.whole("seed"),
        metavar="N",
        help="the random seed of new weights (default 0)",
    )
    group.add_argument(
        "--keras", metavar="FILE.py:FUNCTION", help="the function that builds the model of --model keras"
    )
    group.add_argument("--search", metavar="FILE", type=Path, help="try the configurations in a TOML file")


def _add_stream(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the stream")
    group.add_argument("--schema", metavar="FILE", type=Path, help="the schema, for a stream without one")
    add_kafka_config(group)
    group.add_argument(
        "--skip-message",
        type=message,
        metavar="N:N",
        action="append",
        default=[],
        help="of a topic: skip the message of this partition and offset; may be repeated",
    )
    group.add_argument(
        "--rows",
        type=number_types.whole("rows", least=1, most=number_types.MOST_OF_A_STREAM),
        metavar="N",
        help="stop after N rows of the stream (default no limit)",
    )
    group.add_argument(
        "--label-delay-seconds",
        type=number_types.seconds("label-delay-seconds", most=checks.YEAR),
        metavar="S",
        default=0.0,
        help="learn a row only when its label would be known, by the stream's timestamps (default 0)",
    )
    group.add_argument(
        "--pending-mib",
        type=number_types.whole("pending-mib", least=1, most=_MOST_MEBIBYTES),
        metavar="N",
        default=2048,
        help="maximum memory of rows that wait for their labels (default 2048)",
    )
    group.add_argument(
        "--linger-seconds",
        type=number_types.seconds("linger-seconds", most=checks.DAY),
        metavar="S",
        help="how long a slow stream's rows wait to be learnt together (default 0.5; with --checkpoint "
        "without limit, so that runs are bit-identical)",
    )


def _add_publication(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("versions and checkpoints")
    group.add_argument("--publish", metavar=models.MODEL, type=Path, help="the model's directory, as served")
    group.add_argument(
        "--every-rows",
        type=number_types.whole("every-rows", least=0, most=number_types.MOST_OF_A_STREAM),
        metavar="N",
        default=0,
        help="publish every N rows, and at the end; 0 = only at the end (default)",
    )
    group.add_argument(
        "--every-seconds",
        type=number_types.seconds("every-seconds", most=checks.YEAR),
        metavar="S",
        default=0.0,
        help="publish every S seconds, and at the end; 0 = only at the end (default)",
    )
    group.add_argument(
        "--keep",
        type=number_types.whole("keep", least=0, most=_MOST_VERSIONS),
        metavar="N",
        default=5,
        help="how many versions stay; 0 = all (default 5)",
    )
    group.add_argument(
        "--server-config",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a server's --config: the versions that its labels and numbers name are kept, too; may be "
        "repeated",
    )
    group.add_argument("--signing-key", metavar="FILE", type=Path, help="sign versions with this private key")
    group.add_argument(
        "--quantize", type=int, choices=(16, 8), help="store tables in this many bits (default 32)"
    )
    group.add_argument(
        "--patch", action="store_true", help="store only rows that changed, if that is smaller"
    )
    group.add_argument(
        "--replace", action="store_true", help="publish even if the existing versions are of another model"
    )
    auditing.add_option(group)
    _add_checkpoints(group)


def _add_checkpoints(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--checkpoint", metavar="DIR", type=Path, help="where to save the state")
    group.add_argument(
        "--checkpoint-every-rows",
        type=number_types.whole("checkpoint-every-rows", least=0, most=number_types.MOST_OF_A_STREAM),
        metavar="N",
        default=0,
        help="save every N rows, and at the end; 0 = only at the end (default)",
    )
    group.add_argument(
        "--checkpoint-every-seconds",
        type=number_types.seconds("checkpoint-every-seconds", most=checks.YEAR),
        metavar="S",
        default=0.0,
        help="save every S seconds, and at the end; 0 = only at the end (default)",
    )
    group.add_argument("--resume", action="store_true", help="continue from the newest checkpoint, if any")
    group.add_argument(
        "--continued",
        action="store_true",
        help="with --resume: the input begins with the rows after the checkpoint, not with the first ones",
    )


def _add_reports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reports")
    group.add_argument(
        "--window-rows",
        type=number_types.whole("window-rows", least=1, most=checks.MOST_ROWS),
        metavar="N",
        default=100_000,
        help="rows scored together (default 100000)",
    )
    group.add_argument(
        "--slice",
        action="append",
        metavar="FIELD",
        default=[],
        help="score each value of a column separately; may be repeated",
    )
    group.add_argument("--plot", metavar="FILE", type=Path, help="draw the run: a png, svg or pdf file")
    add_metrics(group)


def run(options: argparse.Namespace) -> int:
    """Train a model, or search for a configuration."""
    try:
        from headrace.training import run_session  # noqa: PLC0415 - other verbs start without compilers
    except ImportError as error:
        raise needs_extra("train", "train", error) from error
    asked = _asked(options)
    if options.search is not None:
        from headrace.training.search import search  # noqa: PLC0415 - as above

        return search(asked, options.search, sys.stdout, sys.stderr)
    if asked.publish is None:
        return run_session.train(asked, sys.stdout, sys.stderr)
    with auditing.audited(options, "train", asked.publish.absolute()) as ending:
        code = run_session.train(asked, sys.stdout, sys.stderr)
        if code:
            ending.result = f"failed: exit code {code}"
    return code


def _asked(options: argparse.Namespace) -> TrainOptions:
    from headrace.training.options import DEFAULT_LINGER_SECONDS, TrainOptions  # noqa: PLC0415 - as above
    from headrace.training.running.loop import Every  # noqa: PLC0415 - as above

    _check(options)
    linger = options.linger_seconds
    if linger is None and options.checkpoint is None:
        linger = DEFAULT_LINGER_SECONDS
    return TrainOptions(
        input=options.input,
        model=model_settings(options),
        keras=options.keras,
        kafka_config=options.kafka_config,
        skip_messages=tuple(options.skip_message),
        schema=options.schema,
        publish=options.publish,
        publish_every=Every(options.every_rows, options.every_seconds),
        keep=options.keep,
        server_configs=tuple(options.server_config),
        signing_key=options.signing_key,
        quantize=options.quantize,
        patch=options.patch,
        replace=options.replace,
        checkpoint=options.checkpoint,
        checkpoint_every=Every(options.checkpoint_every_rows, options.checkpoint_every_seconds),
        resume=options.resume,
        continued=options.continued,
        window_rows=options.window_rows,
        slices=tuple(options.slice),
        label_delay_seconds=options.label_delay_seconds,
        pending_bytes=options.pending_mib * _MEBIBYTE,
        most_rows=options.rows,
        linger_seconds=linger,
        plot=options.plot,
        metrics_host=options.metrics_host,
        metrics_port=options.metrics_port,
        json=options.json,
    )


def model_settings(options: argparse.Namespace) -> dict[str, object]:
    """Return the model's settings from the file and the options, as in TOML.

    Raises:
        ConfigError: The file cannot be read, or an option is wrong.
    """
    from headrace.training.options import changed, check_file  # noqa: PLC0415 - as above

    values = options.own_settings
    changes: dict[str, object] = {
        name: value
        for name in ("factors", "components", "batch_rows", "threads", "seed")
        if (value := getattr(options, name)) is not None
    }
    if options.model not in (None, "keras"):
        changes["kind"] = options.model
    if options.hidden is not None:
        changes["hidden"] = _widths(",".join(options.hidden))
    if options.interaction:
        kept = values.get("interactions")
        changes["interactions"] = [*(kept if isinstance(kept, list) else []), *_pairs(options.interaction)]
    model = str(options.model or values.get("kind", "deepfm"))
    changes |= _optimizer(options.optimizer, options.learning_rate, model)
    if options.search is None:
        _check_used(options, model)
    if options.config is not None:
        check_file(values, changes, f"config: {options.config}")
    return changed(values, changes)


def _optimizer(kind: str | None, rate: float | None, model: str) -> dict[str, object]:
    groups = ("linear",) if kind == "ftrl" else ("linear", "embeddings")
    changes: dict[str, object] = {}
    if kind == "forgetting" and rate is None:
        return {
            group: {"kind": kind, "learning_rate": own.learning_rate, "initial": own.initial}
            for group, own in zip(groups, forgetting_of(model), strict=True)
        }
    if kind is not None:
        changes = {f"{group}.kind": kind for group in groups}
    if rate is None and kind in ("adam", "lazy_adam"):
        rate = _ADAM_RATE
    if rate is not None:
        changes |= {f"{group}.learning_rate": rate for group in ("linear", "embeddings")}
    return changes


def message(text: str) -> tuple[int, int]:
    """Parse the partition and offset of a message in a topic.

    Raises:
        ConfigError: The text is not of the form ``PARTITION:OFFSET``.
    """
    partition, _, offset = text.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise checks.wrong("skip-message", "PARTITION:OFFSET, such as 3:1712", number_types.cut(text))
    return int(partition), int(offset)


def _widths(text: str) -> list[int]:
    try:
        return [int(width) for width in text.replace("-", ",").split(",")]
    except ValueError:
        raise checks.wrong("hidden", "widths such as 128,64", number_types.cut(text)) from None


def _pairs(texts: list[str]) -> list[Mapping[str, object]]:
    pairs: list[Mapping[str, object]] = []
    for text in texts:
        fields = [name.strip() for name in text.split("*")]
        if len(fields) != 2 or not all(fields):
            raise ConfigError(f"interaction: expected two fields such as site*ad, got {text!r}")
        pairs.append({"fields": fields})
    return pairs


def _check(options: argparse.Namespace) -> None:
    if not options.input.startswith("kafka://") and (options.kafka_config or options.skip_message):
        raise ConfigError("kafka-config, skip-message: these are for kafka://HOST:PORT/TOPIC only")
    if (options.model == "keras") != (options.keras is not None):
        raise ConfigError("keras: --model keras and --keras FILE.py:FUNCTION go together")
    if options.model == "keras":
        _check_keras(options)
    if (options.every_rows or options.every_seconds) and options.publish is None:
        raise ConfigError("publish: --every-rows and --every-seconds need --publish DIR/NAME")
    if (options.checkpoint_every_rows or options.checkpoint_every_seconds) and options.checkpoint is None:
        raise ConfigError("checkpoint: an interval is given, but no directory; add --checkpoint DIR")
    if options.search is not None:
        _check_search(options)
    elif options.publish is None and (idle := [one for one in _OF_VERSIONS if getattr(options, one)]):
        given = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise ConfigError(f"publish: {given} would have no effect; add --publish DIR/NAME")
    if options.continued and not options.resume:
        raise ConfigError("continued: --continued requires --resume; give both")


def _check_used(options: argparse.Namespace, kind: str) -> None:
    """Refuse options that the kind of model does not use."""
    if options.factors is not None and kind == "lr":
        raise ConfigError("factors: lr has no embeddings; leave --factors out, or use another --model")
    if options.components is not None and kind != "mdn":
        raise ConfigError(f"components: {kind} has no mixture; leave --components out, or use --model mdn")
    if options.hidden is not None and kind not in DEEP:
        raise ConfigError(f"hidden: {kind} has no network; leave --hidden out, or use {' or '.join(DEEP)}")


def _check_keras(options: argparse.Namespace) -> None:
    own = (
        "optimizer",
        "learning_rate",
        "factors",
        "components",
        "hidden",
        "interaction",
        "quantize",
        "patch",
    )
    given = [f"--{name.replace('_', '-')}" for name in own if getattr(options, name)]
    if given:
        raise ConfigError(
            f"keras: {', '.join(given)} belongs to headrace's own models; a Keras model's file defines its "
            "structure, and how it learns"
        )


def _check_search(options: argparse.Namespace) -> None:
    """Refuse options that a search, which only learns and scores, would silently ignore."""
    defaults: dict[str, object] = {
        **dict.fromkeys(("publish", "signing_key", "audit_file", "checkpoint")),
        **dict.fromkeys(("plot", "metrics_port", "keras")),
        **{"resume": False, "patch": False, "replace": False, "label_delay_seconds": 0.0, "slice": []},
        "server_config": [],
    }
    for name, default in defaults.items():
        if getattr(options, name) != default:
            raise ConfigError(
                f"search: cannot be combined with --{name.replace('_', '-')}; leave one of them out"
            )
