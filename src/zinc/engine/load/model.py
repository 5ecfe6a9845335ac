"""A loaded model: the one owner of weights, cache, programs and engine."""

from __future__ import annotations

from dataclasses import dataclass

from zinc.backends.api import Backend, Cache, CacheLayout, Program
from zinc.backends.plans import weights_of
from zinc.engine.cache_layout import cache_layout
from zinc.engine.engine import Engine
from zinc.engine.load.device_map import BackendChoice
from zinc.engine.load.draft_model import load_drafter
from zinc.engine.load.memory import (
    CacheSize,
    MemoryReport,
    choose_swap,
)
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planned import PlannedModel, plan_graph, plan_model
from zinc.engine.load.speculation import choose_speculation
from zinc.engine.load.weights import Progress, upload
from zinc.engine.readout import ReadoutKind
from zinc.engine.speculative.nextn import NextNDrafter
from zinc.engine.worker import EngineWorker, closed_error
from zinc.ops.graph import Graph
from zinc.plan.hidden import hidden_graph


@dataclass(frozen=True, slots=True)
class _Resources:
    """Everything that `close` frees."""

    choice: BackendChoice
    cache: Cache
    program: Program
    drafter: NextNDrafter | None
    engine: Engine
    worker: EngineWorker


class LoadedModel:
    """A model on a backend, ready to run token ids.

    `options`, `file`, `spec`, `plan`, `kv_dtype`, `context` (tokens of the longest sequence) and
    `memory` stay readable after `close`; the other properties raise RequestError then.
    """

    def __init__(self, planned: PlannedModel, progress: Progress | None = None) -> None:
        """Load the weights of `planned` and allocate its cache.

        Owns the files of `planned`, and closes them if loading fails. progress: called with the
        bytes loaded and the bytes in all, without a draft model. Raises a `ZincError` if a file is
        damaged or memory is short.
        """
        self.options, self.file, self.spec = planned.options, planned.file, planned.spec
        self.plan, self.kv_dtype = planned.plans[0], planned.kv_dtype
        self._close_files = planned.close
        try:
            self._resources: _Resources | None = self._load(planned, progress)
        except BaseException:
            planned.close()
            raise

    @classmethod
    def open(cls, options: LoadOptions, progress: Progress | None = None) -> LoadedModel:
        """Plan and load the model that `options` name. Raises a `ZincError`."""
        return cls(plan_model(options), progress)

    def _load(self, planned: PlannedModel, progress: Progress | None) -> _Resources:
        options, backend = self.options, planned.backend
        size = planned.cache_size()
        self.context = size.context
        folder, digests = options.cache_folder, None
        if folder is not None:
            from zinc.engine.identity import TensorDigests, cache_key

            digests = TensorDigests(self.file, folder)
        upload(self.file, weights_of(planned.all_plans), backend, progress, digests)
        layout = _layout(planned, size)
        cache = backend.allocate(planned.states, layout)
        programs = [backend.prepare(plan, cache) for plan in planned.plans]
        drafter = _drafter(planned, cache)
        draft, draft_bytes = None, 0
        if planned.draft is not None:
            draft, draft_bytes = load_drafter(planned.draft, self.context, self.spec.vocab)
        engine = Engine(
            programs[0],
            cache,
            self.spec.vocab,
            self.context,
            prefix_cache=options.prefix_cache,
            cache_bytes=options.cache_bytes,
            swap_bytes=choose_swap() if options.swap_bytes is None else options.swap_bytes,
            prepare=_Preparer(planned, cache, tuple(programs)),
            extended=programs[1] if len(programs) > 1 else None,
            plain_context=self.spec.plain_context,
            speculation=choose_speculation(options, self.plan, backend, drafter, draft),
            states=planned.states,
            kind=self.spec.kind,
            encoder=self.spec.is_encoder,
        )
        if folder is not None and digests is not None:
            key = cache_key(digests.finish(), planned.all_plans, layout, backend)
            engine.keep_on_disk(folder, key, options.cache_bytes)
        arena_bytes = sum(plan.arena_bytes for plan in planned.all_plans)
        self.memory = MemoryReport(backend.weight_bytes, cache.n_bytes, arena_bytes, draft_bytes)
        worker = EngineWorker(engine)
        return _Resources(planned.choice, cache, programs[0], drafter, engine, worker)

    @property
    def _open(self) -> _Resources:
        """The live resources. Raises RequestError after `close`."""
        if self._resources is None:
            raise closed_error()
        return self._resources

    @property
    def choice(self) -> BackendChoice:
        """The backend, and why the model runs there."""
        return self._open.choice

    @property
    def backend(self) -> Backend:
        """The backend that runs the model."""
        return self._open.choice.backend

    @property
    def cache(self) -> Cache:
        """The keys, values and recurrent states of all sequences."""
        return self._open.cache

    @property
    def program(self) -> Program:
        """The program of sequences up to the plain context."""
        return self._open.program

    @property
    def drafter(self) -> NextNDrafter | None:
        """The drafter with the model's NextN block, if that is loaded."""
        return self._open.drafter

    @property
    def engine(self) -> Engine:
        """The engine. The worker's thread owns it: run nothing on it while requests run."""
        return self._open.engine

    @property
    def worker(self) -> EngineWorker:
        """The thread that owns the engine."""
        return self._open.worker

    def check_open(self) -> None:
        """Raise RequestError if the model is closed."""
        _ = self._open

    def close(self) -> None:
        """Free the model's memory; running requests end with an error.

        With a cache directory, the prefix cache is on disk when this returns. Closing twice is
        allowed.
        """
        resources, self._resources = self._resources, None
        try:
            if resources is not None:
                resources.worker.close()
        finally:
            self._close_files()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Preparer:
    """Factory of the programs that only some requests need, on the cache of the others."""

    planned: PlannedModel
    cache: Cache
    programs: tuple[Program, ...]

    def __call__(self, kind: ReadoutKind, extended: bool) -> Program:
        if self.planned.spec.is_encoder:  # its programs yield hidden rows
            return self.programs[extended]
        graph: Graph = self.planned.model.graphs[extended]
        if kind is ReadoutKind.HIDDEN:
            graph = hidden_graph(graph)
        options, backend = self.planned.options, self.planned.backend
        plan = plan_graph(graph, backend, options, output_rows=options.batch_tokens)
        return backend.prepare(plan, self.cache)


def _drafter(planned: PlannedModel, cache: Cache) -> NextNDrafter | None:
    """Return the drafter with the model's NextN block, if that is planned."""
    programs = [planned.backend.prepare(plan, cache) for plan in planned.draft_plans]
    if not programs:
        return None
    model = planned.model
    return NextNDrafter(programs, cache.layout, model.spec.vocab, model.draft_tokens)


def _layout(planned: PlannedModel, size: CacheSize) -> CacheLayout:
    options = planned.options
    chunk_tokens = options.batch_tokens if options.sequences is None else None
    states = planned.states
    return cache_layout(states, size.tokens, planned.kv_dtype, size.state_slots, chunk_tokens)
