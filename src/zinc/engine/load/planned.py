"""A model file with its plans for a backend, before any weight is read.

`zinc plan` prints it; `LoadedModel` loads it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from zinc.backends.api import Backend, Kernels
from zinc.backends.plans import Plan, states_of
from zinc.core.dataclass import dataclass
from zinc.core.rounding import round_up
from zinc.engine.cache_layout import BLOCK_TOKENS, state_bytes_per_sequence
from zinc.engine.load.device_map import (
    BackendChoice,
    OpenModel,
)
from zinc.engine.load.draft_model import draft_cache_bytes
from zinc.engine.load.memory import (
    CacheSize,
    MemoryBudget,
    budgets,
    choose_cache,
    choose_context,
)
from zinc.engine.load.options import LoadOptions
from zinc.engine.scheduler import MAX_SEQUENCES
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.spec import ModelSpec
from zinc.ops.graph import Graph
from zinc.ops.values import State
from zinc.plan.adapters import Adapters
from zinc.plan.planner import make_plan


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model file, the backend it will run on, and one plan for each of its graphs.

    adapted_plans: for the same graphs, for steps in which a sequence uses a LoRA adapter; () if
    none is loaded. draft_plans: for each graph, those of its NextN blocks in their order; () if
    they are not loaded. draft: its draft model, if it has one.
    """

    options: LoadOptions
    model: OpenModel
    choice: BackendChoice
    plans: tuple[Plan, ...]
    kv_dtype: str
    adapted_plans: tuple[Plan, ...] = ()
    draft_plans: tuple[tuple[Plan, ...], ...] = ()
    draft: PlannedModel | None = None

    @property
    def all_plans(self) -> tuple[Plan, ...]:
        """The plans of the model and of its NextN blocks, which share weights and a cache."""
        return (*self.plain_plans, *self.adapted_plans)

    @property
    def plain_plans(self) -> tuple[Plan, ...]:
        """All plans for steps without adapters."""
        return (*self.plans, *itertools.chain(*self.draft_plans))

    @property
    def states(self) -> tuple[State, ...]:
        """The caches and recurrent states of all plans."""
        return states_of(self.all_plans)

    @property
    def file(self) -> GGUFFile:
        """The open model file."""
        return self.model.file

    @property
    def spec(self) -> ModelSpec:
        """The model's shapes and constants."""
        return self.model.spec

    @property
    def backend(self) -> Backend:
        """The backend that the plans are for."""
        return self.choice.backend

    def budgets(self) -> list[MemoryBudget]:
        """Return the memories of the backend, with the bytes that the plans take of each.

        A draft model takes those of the first one.
        """
        found = budgets(self.file, self.all_plans, self.backend)
        if self.draft is not None:
            (beside,) = self.draft.budgets()
            found = [
                replace(
                    memory,
                    weights_bytes=memory.weights_bytes + beside.weights_bytes,
                    arena_bytes=memory.arena_bytes + beside.arena_bytes,
                    draft_bytes=self.draft.draft_cache_bytes,
                )
                if i == 0 or memory.has_first
                else memory
                for i, memory in enumerate(found)
            ]
        return found

    def draft_cache_bytes(self, context: int) -> int:
        """Return the bytes of the cache of this draft model, for a model with that context."""
        tokens = min(context, self.spec.context)
        return draft_cache_bytes(self.states, self.kv_dtype, tokens)

    def cache_size(self) -> CacheSize:
        """Return the size of the cache: as the options say, or what fits in memory.

        Raises MemoryLimitError if no cache fits, and RequestError for an impossible context.
        """
        options, memories = self.options, self.budgets()
        if options.sequences is None:
            tokens = options.step_tokens
            size = choose_cache(self.spec, memories, self.kv_dtype, options.context, tokens)
            if self.spec.is_encoder:
                # A text holds blocks for one step, and its last block may be part full.
                size = replace(size, tokens=tokens + MAX_SEQUENCES * BLOCK_TOKENS)
            return size
        context = min(
            choose_context(
                self.spec,
                memory.states,
                self.kv_dtype,
                options.context,
                memory.available,
                memory.taken + state_bytes_per_sequence(memory.states),
                on_device=memory.on_device,
                draft_bytes=memory.draft_bytes,
            )
            for memory in memories
        )
        whole_blocks = round_up(context, BLOCK_TOKENS)
        return CacheSize(context, options.sequences * whole_blocks, options.sequences)

    def plan_for(self, n_tokens: int) -> Plan:
        """Return the plan that runs a sequence of `n_tokens`."""
        return self.default_plans[-1 if 0 < self.spec.plain_context < n_tokens else 0]

    @property
    def default_plans(self) -> tuple[Plan, ...]:
        """The plans of sequences that use the adapters of the options."""
        return self.adapted_plans if any(x.scale for x in self.options.lora) else self.plans

    def on(self, backend: Backend) -> PlannedModel:
        """Return the same plans, to be run by another `backend`, such as the reference."""
        return replace(self, choice=BackendChoice(backend))

    def close(self) -> None:
        """Close the file, and those of the adapters and the draft model."""
        self.file.close()
        self.model.adapters.close()
        if self.draft is not None:
            self.draft.close()

    def __enter__(self) -> PlannedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plan_graph(
    graph: Graph,
    kernels: Kernels,
    options: LoadOptions,
    *,
    output_rows: int | None = None,
    adapters: Adapters = (),
) -> Plan:
    """Return a plan of `graph` for steps of `options`.

    output_rows: for a plan that returns this many rows of logits or hidden states to the host;
    None for the plan of answers, which samples on the device if the backend can. adapters: LoRA
    adapters that sequences may use.
    """
    return make_plan(
        graph,
        kernels,
        max_tokens=options.step_tokens,
        max_outputs=options.output_rows if output_rows is None else output_rows,
        samples=output_rows is None,
        adapters=adapters,
    )
