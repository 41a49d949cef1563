"""Loading of versions: from a directory or a Python object to a version that is ready to serve."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from headrace.base.clock import Clock
from headrace.base.errors import NotLoadable
from headrace.batching.capacity import fit_of
from headrace.batching.cost import BatchCost
from headrace.batching.policy_defaults import ASYNC_INSTANCES, threads_per_instance, with_instances
from headrace.batching.request import VERSION, WRITTEN, Origin
from headrace.batching.statistics import ModelTotals
from headrace.config import MODEL_CONFIG_FILE, ModelConfig
from headrace.lifecycle.idle_time import stop_if_dropped
from headrace.lifecycle.loader_threads import LoaderThreads
from headrace.lifecycle.warmup import WarmUpBatch, probe, warm_up, warm_up_serving_threads
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature, TensorSpec
from headrace.model.streaming_servable import FirstPart, is_streaming
from headrace.predictors.cached_predictor import Cached
from headrace.predictors.default_answers import DefaultModel, DefaultValues, default_rows
from headrace.runtimes import registry
from headrace.serving.labels_file import with_labels
from headrace.serving.loaded_version import LoadedVersion
from headrace.serving.model_calls import ModelCalls
from headrace.versions.file_trust import StagedVersion, TrustedFiles
from headrace.versions.manifest import Manifest, check_manifest, space_versions

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.isolation.servable import IsolatedServable
    from headrace.versions.signatures import Verifier

_log = logging.getLogger(__name__)

_NO_ARCHIVE = (
    "inputs: they come from an archive, but there is none; start with --archive FILE, "
    "or in process with Engine(archive=…)"
)


def _inputs(signatures: Mapping[str, Signature]) -> tuple[TensorSpec, ...]:
    found = signatures.get(DEFAULT_SIGNATURE)
    return found.inputs if found is not None else ()


def _nothing_looked_up(config: ModelConfig) -> dict[str, object]:
    """Return the default values of the outputs that report on inputs looked up in the archive."""
    names = [name for name, source in config.inputs.items() if source.answer]
    return {name + kind: 0 for name in names for kind in (WRITTEN, VERSION)}


def _check_streams(config: ModelConfig) -> None:
    """Refuse sections that need whole answers, for a model that answers in parts.

    Raises:
        NotLoadable: The settings have such a section.
    """
    needs_whole_answers = {
        "[cache]": config.cache.size_bytes > 0,
        "[default]": bool(config.default.values or config.default.model),
        "[inputs]": bool(config.inputs),
        "[image]": config.image is not None,
        "signature.top": bool(config.signature.top),
    }
    for section, is_set in needs_whole_answers.items():
        if is_set:
            raise NotLoadable(
                f"predict yields its answer in parts, and {section} of headrace.toml needs whole answers: "
                "leave that out, or return one mapping"
            )


def _mark_isolated(loaded: LoadedVersion, runs: Servable) -> LoadedVersion:
    """Attach the isolated Servable; disable ``callers`` and ``at_once``, which would block while it hangs."""
    loaded.isolated = cast("IsolatedServable", runs)
    loaded.callers = loaded.at_once = None
    return loaded


@dataclass(frozen=True)
class VersionLoader:
    """Loads version directories, or returns objects passed in process; the Manager's Loader.

    Attributes:
        clock: The serving thread's Clock.
        threads: The loader threads.
        allow_code: Whether Python code in version directories may run.
        calls: Lets Python models call other models; None if they cannot.
        find: Returns the default version of another model, in the serving thread.
        ready: Returns a model's version that serves, in any thread; None if there is none.
        objects: Servables passed in process, by model and version.
        totals: Totals of each model over all its versions.
        archive: Returns the archive that model inputs come from, if there is one.
        verifier: Verifies the signatures of versions; None if unsigned versions are served, too.
        trusted: The files that may be loaded.
        fair: Whether callers take turns when several wait.
        isolate: Whether versions run in processes of their own, unless the model's settings say otherwise.
        drain_seconds: Time in seconds that open streams of a version may take once it is to be unloaded.
    """

    clock: Clock
    threads: LoaderThreads
    allow_code: bool = False
    calls: ModelCalls | None = None
    find: Callable[[str], LoadedVersion] | None = None
    ready: Callable[[str], LoadedVersion | None] | None = None
    objects: Mapping[tuple[str, int], Servable] = field(default_factory=dict)
    totals: ModelTotals = field(default_factory=ModelTotals)
    archive: Callable[[], Archive | None] = lambda: None
    verifier: Verifier | None = None
    trusted: TrustedFiles = field(default_factory=lambda: TrustedFiles(follow_links=True))
    fair: bool = False
    isolate: bool = False
    drain_seconds: float = 30.0

    def load(self, model: str, version: int, path: Path, config: ModelConfig) -> LoadedVersion:
        """Load one version, in a loader thread.

        Raises:
            LoadError: The version does not match its manifest, lacks a valid signature, or no runtime can
                load it.
            Unavailable: A space that its inputs come from is not known yet.
        """
        began, given = time.monotonic(), self.objects.get((model, version))
        if given is not None:
            return self._with_predictors(LoadedVersion(model, version, given, config, self.clock))
        if (path / MODEL_CONFIG_FILE).exists():
            _log.warning(
                "%s version %d: the %s in the version's directory is not read; move it to %s/%s",
                *(model, version, MODEL_CONFIG_FILE, path.parent.name, MODEL_CONFIG_FILE),
            )
        if config.inputs and self.archive() is None:
            raise NotLoadable(_NO_ARCHIVE)
        runtime = registry.recognised(path, config.runtime.kind)
        self.trusted.check(path, is_code=runtime is not None and runtime.is_code)
        its_own = registry.checks_itself(path, runtime)
        vouch = None if self.verifier is None else partial(self.verifier.check, path, model, version)
        manifest = self.threads.when_idle(lambda: check_manifest(path, its_own, stop_if_dropped, vouch))
        if runtime is None:
            registry.expect(path, config.runtime.kind)
        files = None if manifest is None else {name: one.sha256 for name, one in manifest.files.items()}
        usual = with_labels(config, path, files)
        config = with_instances(usual, runtime.instances)
        # Pinned to its kind: files that appear later must not make it look like another.
        options = self._options(config)
        options = replace(options, kind=runtime.kind, checksums=files, is_verified=vouch is not None)
        run = partial(self._run, options=options)
        isolates = self.isolate if config.isolate is None else config.isolate
        isolates = isolates or config.batching.instance_processes is not None
        if isolates:
            check = partial(self.trusted.check_again, path, manifest, is_code=runtime.is_code)
            run = partial(self._load_isolated, (model, version, path), config, options, check)
        if vouch is None or manifest is None:
            runs = servable = run(path)
        else:
            runs = servable = self._load_copy(path, manifest, run, runtime)
        self._declare(model, version, runs)
        servable = self._with_preparation(servable, config)
        if config.inputs:
            servable = self._with_lookups(model, servable, config, manifest)
        elif getattr(servable, "loop", None) is not None:
            config = with_instances(usual, ASYNC_INSTANCES)
        loaded = self._with_predictors(LoadedVersion(model, version, servable, config, self.clock, path))
        loaded.bare, loaded.load_seconds = runs, time.monotonic() - began
        loaded.runs_code = runtime.is_code and not isolates
        return _mark_isolated(loaded, runs) if isolates else loaded

    def _declare(self, model: str, version: int, servable: Servable) -> None:
        """Record the models that a version calls.

        Raises:
            NotLoadable: It would call itself, directly or through others.
        """
        try:
            if self.calls is not None:
                self.calls.add(model, version, getattr(servable, "calls", ()))
        except NotLoadable:
            servable.close()
            raise

    def _load_isolated(
        self,
        of: tuple[str, int, Path],
        config: ModelConfig,
        options: registry.RuntimeOptions,
        check: Callable[[], object],
        path: Path,
    ) -> Servable:
        # Imported late: only isolated models need it.
        from headrace.isolation.replica import Which  # noqa: PLC0415
        from headrace.isolation.servable import load  # noqa: PLC0415

        model, version, recorded_in = of
        # A signed version is reloaded from its private copy, which nobody else can write.
        which = Which(model, version, path, check) if path == recorded_in else Which(model, version, path)
        return load(which, recorded_in, options, config)

    def _run(self, path: Path, options: registry.RuntimeOptions) -> Servable:
        if options.threads > 1:
            # A runtime's threads keep the priority of the thread that creates them; the loader's is too low.
            return self.threads.at_serving_priority(registry.load, path, options)
        return registry.load(path, options)

    def _load_copy(
        self,
        path: Path,
        manifest: Manifest,
        run: Callable[[Path], Servable],
        runtime: registry.Runtime,
    ) -> Servable:
        """Load a signed version so that no file can be replaced after it was verified."""
        if runtime.checks:  # the runtime computes with the bytes that it has verified
            return run(path)
        staged = self.threads.when_idle(lambda: StagedVersion(path, manifest, stop_if_dropped))
        try:
            servable = run(staged.path)
        except BaseException:
            staged.close()
            raise
        weakref.finalize(servable, staged.close)  # a model's own code may read its files later
        return servable

    @staticmethod
    def _with_preparation(servable: Servable, config: ModelConfig) -> Servable:
        """Wrap a model to decode images before it and to name classes after it, if the settings say so."""
        try:
            if is_streaming(servable):
                _check_streams(config)
            if config.image is not None:
                # Imported late: only models that take images need it.
                from headrace.images.image_servable import ImageServable  # noqa: PLC0415

                servable = ImageServable(servable, config.image)
            if config.signature.top:
                from headrace.model.labelled_servable import LabelledServable  # noqa: PLC0415 - as above

                signature = config.signature
                servable = LabelledServable(servable, signature.scores, signature.labels, signature.top)
            return servable
        except BaseException:
            servable.close()
            raise

    def _with_lookups(
        self, model: str, servable: Servable, config: ModelConfig, manifest: Manifest | None
    ) -> Servable:
        """Wrap a model to look inputs up in the archive, in the space versions that it was trained on."""
        # Imported late: only models with archive inputs need it.
        from headrace.archive.model_inputs.lookup_servable import LookupServable  # noqa: PLC0415

        try:
            archive = self.archive()
            if archive is None:
                raise NotLoadable(_NO_ARCHIVE)
            return LookupServable(servable, archive, model, config, space_versions(manifest))
        except BaseException:
            servable.close()
            raise

    def _with_predictors(self, loaded: LoadedVersion) -> LoadedVersion:
        """Wrap a version's Batcher in a cache and a Predictor of defaults, if the settings say so."""
        policy = loaded.config.default
        if loaded.streams is not None:
            loaded.streams.drain_seconds = self.drain_seconds
        if self.fair:
            loaded.batcher.share_fairly()
        if policy.values or policy.model or loaded.config.cache.size_bytes:
            loaded.callers = loaded.at_once = None
        if loaded.config.cache.size_bytes:
            loaded.predictor = loaded.cache = Cached(
                loaded.batcher,
                loaded.config.cache,
                origin=loaded.origin,
                statistics=loaded.batcher.statistics,
                clock=self.clock,
                most_waiting_rows=loaded.config.batching.max_queue_rows,
            )
        if policy.values:
            loaded.predictor = DefaultValues(
                loaded.predictor,
                default_rows(_nothing_looked_up(loaded.config) | policy.values, loaded.signatures),
                origin=Origin(loaded.name, 0, is_default=True),
                statistics=loaded.batcher.statistics,
                clock=self.clock,
                after_seconds=policy.after_seconds,
            )
        elif policy.model:
            if policy.model == loaded.name or self.find is None:
                raise NotLoadable(f"default.model: expected another model's name, got {policy.model!r}")
            loaded.predictor = DefaultModel(
                loaded.predictor,
                loaded.signatures,
                policy,
                self.find,
                statistics=loaded.batcher.statistics,
                clock=self.clock,
            )
        return loaded

    def _options(self, config: ModelConfig) -> registry.RuntimeOptions:
        runtime, signature = config.runtime, config.signature
        return registry.RuntimeOptions(
            kind=runtime.kind,
            threads=threads_per_instance(config.batching),
            trusted=runtime.trusted,
            allow_code=self.allow_code,
            options=runtime.options,
            signature=registry.SignatureSettings(
                kind=signature.kind,
                scores=signature.scores,
                classes=signature.classes,
                labels=signature.labels,
            ),
            call=None if self.calls is None else self.calls.call,
            call_async=None if self.calls is None else self.calls.call_async,
            native=self.threads.when_idle,
            share=self.threads.share,
        )

    def warm_up(self, loaded: LoadedVersion) -> None:
        """Run recorded requests, check the version, run generated batches, and measure the cost of batches.

        They run in a loader thread. A model's own code runs in the threads that will serve it.

        Raises:
            LoadError: A recorded request or a check failed, or a process of the version did not start.
        """
        servable, config, path = loaded.servable, loaded.config, loaded.path
        if loaded.streams is not None and is_streaming(servable):
            first = FirstPart(servable)
            loaded.streams.start(lambda: warm_up(first, config, path, BatchCost()))
            return
        serving, own = self.ready(loaded.name) if self.ready is not None else None, loaded.bare.signatures
        must_answer = (
            serving is not None and serving.answers and _inputs(serving.bare.signatures) == _inputs(own)
        )

        def checks(recorded: Sequence[WarmUpBatch]) -> None:
            of = loaded.name, loaded.version
            loaded.answers = probe(loaded.bare, config, of, loaded.load_seconds, must_answer, recorded)

        if loaded.runs_code:
            batcher, clock = loaded.batcher, self.clock
            warm = partial(warm_up_serving_threads, servable, config, path, batcher, clock, checks)
            self.threads.at_serving_priority(warm)
        else:
            warm_up(servable, config, path, loaded.batcher.cost, self.threads.when_idle, checks)
        if loaded.isolated is not None:
            loaded.isolated.start_others()
        loaded.warmed = fit_of(loaded.batcher.cost) if loaded.batcher.cost.known else None

    def attach(self, loaded: LoadedVersion) -> None:
        """Prepare the version to serve, in the serving thread, and include it in the totals.

        Raises:
            LoadError: A process of the version has ended.
        """
        if loaded.isolated is not None:
            loaded.isolated.serve()
        self.totals.include(loaded)

    def close(self, loaded: LoadedVersion) -> None:
        """Free a version that is no longer used, in a loader thread."""
        if self.calls is not None:
            self.calls.remove(loaded.name, loaded.version)
        if loaded.cache is not None and (share := loaded.statistics.cached_share) is not None:
            _log.info(
                "its prediction cache answered %.1f %% of the requests without the model",
                share * 100,
                extra={"model": loaded.name, "version": loaded.version},
            )
        try:
            self.clock.call_soon_threadsafe(loaded.batcher.close)
        except RuntimeError:  # the event loop has ended, and all requests with it
            loaded.batcher.instances.stop()
        if loaded.streams is not None:
            loaded.streams.stop()
        loaded.servable.close()
