"""The options of a load: one frozen record that `LLM`, the CLI and the server fill in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError
from zinc.engine.load.settings import NO_SETTINGS, ModelSettings
from zinc.engine.scheduler import MAX_SEQUENCES
from zinc.models.parts.context import RopeScaling
from zinc.plan.device_map import DeviceMap

if TYPE_CHECKING:
    from zinc.kv.store import Store

# Tokens of a step, unless a load says otherwise or the devices need larger ones.
BATCH_TOKENS = 512

# The least value of each option that is a number, unless it is None.
_LEAST = {"threads": 1, "context": 1, "batch_tokens": 1, "cache_bytes": 0, "swap_bytes": 0}


@dataclass(frozen=True, slots=True)
class AdapterOption:
    """The file of a LoRA adapter, and its scale in requests that name none."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of a load; `LLM` describes the fields that are its arguments.

    path: the model file; None is the embedded model. settings: the model's own; `context` overrides
    their context. backend_options: as in `zinc.backends.api.create`. batch_tokens: most tokens of a
    step; `plan_model` sets it if the devices need larger steps than the default. max_outputs: most
    output rows of a step (default: 64, or `batch_tokens` if that is less). sequences: size the
    cache for exactly this many sequences of `context` tokens, in which every layer keeps every
    position (default: as many as fit). swap_bytes: None takes a share of the free host memory.
    speculate: as in `zinc.engine.load.speculation.MODES`. draft: file of a draft model. rollback:
    rows by which recurrent states can be rolled back, up to 16, which takes twice their memory; 0
    for none. nextn: load the model's NextN block too. `plan_model` sets `rollback` and `nextn` if
    drafts need them. nextn_tokens: draft about this many frequent tokens only, which makes a draft
    faster; 0 for all. lora: adapters that requests may use. prefix_store: returns the store of a
    cache key, in which processes keep prefixes for each other, in place of `cache_dir`. Raises
    RequestError for a number out of range.
    """

    path: Path | None = None
    settings: ModelSettings = NO_SETTINGS
    backend: str = "auto"
    threads: int | None = None
    device_map: DeviceMap | None = None
    context: int | None = None
    rope: RopeScaling | None = None
    kv_dtype: str = "auto"
    batch_tokens: int | None = None
    prefix_cache: bool = True
    cache_bytes: int | None = None
    swap_bytes: int | None = None
    cache_dir: Path | None = None
    pooling: str | None = None
    chat_template: str | None = None
    backend_options: Mapping[str, str] = field(default_factory=dict)
    max_outputs: int | None = None
    sequences: int | None = None
    speculate: str = "auto"
    draft: Path | None = None
    rollback: int = 0
    nextn: bool = False
    nextn_tokens: int = 0
    lora: tuple[AdapterOption, ...] = ()
    prefix_store: Callable[[str], Store] | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Integral) and int(value) >= least):
                raise RequestError(
                    f"{name} is {value!r}", f"it must be a whole number of at least {least}"
                )

    @property
    def step_tokens(self) -> int:
        """The most tokens of a step."""
        return self.batch_tokens or BATCH_TOKENS

    @property
    def output_rows(self) -> int:
        """The most output rows of a step."""
        return self.max_outputs or min(MAX_SEQUENCES, self.step_tokens)

    @property
    def cache_folder(self) -> Path | None:
        """The folder of the prefix cache; None without a prefix cache."""
        return self.cache_dir if self.prefix_cache else None

    @property
    def saves_prefixes(self) -> bool:
        """Whether the prefix cache is saved, in a folder or a store."""
        return self.prefix_cache and not (self.cache_dir is None and self.prefix_store is None)
