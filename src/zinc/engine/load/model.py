"""A loaded model: the one owner of weights, cache, programs and engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from zinc.backends.api import Backend, Cache, CacheLayout, Program
from zinc.backends.plans import weights_of
from zinc.core.dataclass import dataclass
from zinc.core.env import cache_folder
from zinc.engine.adapters import AdapterUse
from zinc.engine.cache_layout import cache_layout
from zinc.engine.engine import Engine
from zinc.engine.load.device_map import BackendChoice
from zinc.engine.load.drafter import load_drafter
from zinc.engine.load.memory import (
    CacheSize,
    MemoryReport,
    choose_swap,
)
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planned import PlannedModel, plan_graph
from zinc.engine.load.planning import plan_model
from zinc.engine.load.speculation import choose_speculation
from zinc.engine.load.weights import Progress, upload
from zinc.engine.readout import ReadoutKind
from zinc.engine.speculative.nextn import NextNDrafter
from zinc.engine.worker import EngineWorker, closed_error
from zinc.formats.gguf import GGUFFile
from zinc.ops.graph import Graph
from zinc.plan.hidden import hidden_graph

if TYPE_CHECKING:
    from zinc.engine.identity import TensorDigests


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """A LoRA adapter of a model.

    scale: for requests that name no scales. task_name, prompt_prefix: what the file says about its
    use; empty if it says nothing.
    """

    id: int
    path: Path
    scale: float
    task_name: str
    prompt_prefix: str


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
        self.plan, self.kv_dtype = planned.default_plans[0], planned.kv_dtype
        self._close_files = planned.close
        self._adapters = planned.model.adapters
        try:
            self._scales = {i: each.scale for i, each in enumerate(self.options.lora)}
            self._default_use = self._adapters.use(self._scales)
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
        digests = _tensor_digests(self.file, options)
        weights = weights_of(planned.all_plans)
        upload(self.file, weights, backend, progress, digests, planned.model.adapters)
        layout = _layout(planned, size)
        cache = backend.allocate(planned.states, layout)
        programs = [backend.prepare(plan, cache) for plan in planned.plans]
        adapted = [backend.prepare(plan, cache) for plan in planned.adapted_plans]
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
            prepare=_Preparer(planned, cache, (tuple(programs), tuple(adapted))),
            extended=programs[1] if len(programs) > 1 else None,
            adapted=tuple(adapted),
            plain_context=self.spec.plain_context,
            speculation=choose_speculation(options, self.plan, backend, drafter, draft),
            states=planned.states,
            kind=self.spec.kind,
            encoder=self.spec.is_encoder,
        )
        if digests is not None:
            _save_prefixes(engine, planned, layout, digests)
        arena_bytes = sum(plan.arena_bytes for plan in planned.all_plans)
        self.memory = MemoryReport(backend.weight_bytes, cache.n_bytes, arena_bytes, draft_bytes)
        worker = EngineWorker(engine)
        default = programs[0] if self._default_use is None else adapted[0]
        return _Resources(planned.choice, cache, default, drafter, engine, worker)

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
        """The program of sequences up to the plain context that use the adapters of the options."""
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

    # -- LoRA adapters --------------------------------------------------------------------------

    @property
    def adapters(self) -> tuple[LoadedAdapter, ...]:
        """The LoRA adapters that requests may use."""
        pairs = zip(self.options.lora, self._adapters.files, strict=True)
        return tuple(
            LoadedAdapter(i, option.path, self._scales[i], file.task_name, file.prompt_prefix)
            for i, (option, file) in enumerate(pairs)
        )

    def set_adapter_scales(self, scales: Mapping[int, float]) -> None:
        """Set the scales for later requests that name none; 0 for adapters that are left out.

        Raises RequestError for an id without an adapter, or a scale that is out of range.
        """
        use = self._adapters.use(scales)
        self._scales = {i: float(scales.get(i, 0.0)) for i in range(len(self.options.lora))}
        self._default_use = use

    def adapter_use(self, scales: Mapping[int, float] | None = None) -> AdapterUse | None:
        """Return the adapters of a request with these scales by id, 0 for those left out.

        None are the scales of the model. Raises RequestError as `set_adapter_scales` does.
        """
        return self._default_use if scales is None else self._adapters.use(scales)

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
    """Factory of the programs that only some requests need, on the cache of all programs.

    programs: the programs that answer requests, without adapters and with them.
    """

    planned: PlannedModel
    cache: Cache
    programs: tuple[tuple[Program, ...], tuple[Program, ...]]

    def __call__(self, kind: ReadoutKind, extended: bool, adapted: bool) -> Program:
        if self.planned.spec.is_encoder:  # its programs yield hidden rows
            return self.programs[adapted][extended]
        graph: Graph = self.planned.model.graphs[extended]
        if kind is ReadoutKind.HIDDEN:
            graph = hidden_graph(graph)
        options, backend = self.planned.options, self.planned.backend
        adapters = self.planned.model.adapters.factors if adapted else ()
        rows = options.step_tokens
        plan = plan_graph(graph, backend, options, output_rows=rows, adapters=adapters)
        return backend.prepare(plan, self.cache)


def _drafter(planned: PlannedModel, cache: Cache) -> NextNDrafter | None:
    """Return the drafter with the model's NextN blocks, if they are planned."""
    programs = [
        [planned.backend.prepare(plan, cache) for plan in plans] for plans in planned.draft_plans
    ]
    if not programs:
        return None
    model, spec = planned.model, planned.spec
    return NextNDrafter(programs, cache.layout, spec.vocab, spec.nextn_input, model.draft_tokens)


def _hash_folder() -> Path:
    """Return the folder for hashes of weights, if the prefix cache has none."""
    folder = cache_folder()
    with suppress(OSError):  # they are then computed at every start
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _tensor_digests(file: GGUFFile, options: LoadOptions) -> TensorDigests | None:
    """Return the digests of the weights if the prefix cache is saved, else None."""
    if not options.saves_prefixes:
        return None
    from zinc.engine.identity import TensorDigests

    return TensorDigests(file, options.cache_folder or _hash_folder())


def _save_prefixes(
    engine: Engine, planned: PlannedModel, layout: CacheLayout, digests: TensorDigests
) -> None:
    """Save the prefix cache of `engine` in the store or folder that the options name."""
    from zinc.engine.identity import cache_key
    from zinc.kv.store import FolderStore

    options = planned.options
    key = cache_key(digests.finish(), planned.plain_plans, layout, planned.backend)
    if options.prefix_store is not None:
        engine.attach_store(options.prefix_store(key), options.cache_bytes, fetch=True)
    elif options.cache_folder is not None:
        engine.attach_store(FolderStore(options.cache_folder, key), options.cache_bytes)


def _layout(planned: PlannedModel, size: CacheSize) -> CacheLayout:
    options = planned.options
    chunk_tokens = options.step_tokens if options.sequences is None else None
    states = planned.states
    return cache_layout(states, size.tokens, planned.kv_dtype, size.state_slots, chunk_tokens)
