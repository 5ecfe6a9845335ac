"""From a file name to weights on a backend, with the memory it takes known before it is taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zinc.backends import api
from zinc.backends.api import Backend, CacheLayout, Expecting, Plan
from zinc.core.errors import FormatError, MemoryLimitError, RequestError
from zinc.core.kv_types import BYTES_A_NUMBER, GROUP
from zinc.engine.identity import TensorDigests
from zinc.formats.gguf import GGUFFile
from zinc.kv import Group, window_blocks
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import KVState, RecurrentState, State
from zinc.plan.weights import tensor_data

EMBEDDED_MODEL = Path(__file__).parent.parent / "data" / "zinc-demo-30m-q4_k_m.gguf"
BLOCK_TOKENS = 64
# The most tokens that a step runs, unless a load says otherwise.
BATCH_TOKENS = 512
# What the rest of the process and the page cache keep when a context is chosen by itself.
MEMORY_RESERVE = 0.15
MAX_SEQUENCES = 64
# At most this part of the memory beside the weights goes to recurrent states.
STATE_SHARE = 1 / 16
# States of sequences that run, and checkpoints of others.
MAX_STATE_SLOTS = 96
# The cache holds one context, or more of them as long as it takes this part of the memory at most.
POOL_CONTEXTS = 8
POOL_SHARE = 1 / 8
# At most this part of the memory goes to copies of sequences that make room for others.
SWAP_SHARE = 1 / 16
# How many sequences may have the layers' whole sliding windows at a time.
WINDOW_SEQUENCES = 8


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes a loaded model takes."""

    weights_bytes: int
    kv_bytes: int
    arena_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.arena_bytes


def resolve_model(name: str | os.PathLike[str] | None) -> Path:
    """The file a model name means; None is the embedded model. Raises FormatError."""
    if name is None:
        return EMBEDDED_MODEL
    path = Path(name).expanduser()
    if path.is_dir():
        raise FormatError(f"cannot open {path}", "it is a folder", "name a .gguf file inside it")
    if not path.exists():
        hint = "check the path"
        if path.suffix != ".gguf":  # the name of a repository, for example
            hint = "models are .gguf files on this machine: download one, and give its path"
        raise FormatError(f"cannot open {path}", "there is no such file", hint)
    return path


def create_backend(
    name: str = "auto", threads: int | None = None, options: Mapping[str, str] | None = None
) -> Backend:
    """The backend of that name; "auto" takes the best that zinc has for this machine."""
    return api.create("cpu" if name == "auto" else name, threads, options)


def available_memory_bytes(backend: Backend | None = None) -> int:
    """Memory that can be taken: the device's, or without swapping, as the system estimates it."""
    if backend is not None and (on_device := backend.available_bytes()) is not None:
        return on_device
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def weights_bytes(file: GGUFFile, plan: Plan) -> int:
    """Bytes of the tensors that a plan reads. Several weights may be parts of one tensor."""
    return sum(file.tensors[name].n_bytes for name in {w.tensor for w in plan.weights})


def resolve_kv_dtype(wanted: str, backend: str, states: tuple[State, ...]) -> str:
    """The type of keys and values that "auto" means; docs/adr/0001-kv-type.md has the reasons.

    Raises RequestError when there is no such type, or not for a model.
    """
    if wanted != "auto" and wanted not in BYTES_A_NUMBER:
        known = ", ".join(BYTES_A_NUMBER)
        raise RequestError(f"there is no KV type {wanted!r}", "", f"choose auto or one of {known}")
    dims = {dim for s in states if isinstance(s, KVState) for dim in (s.head_dim, s.head_dim_v)}
    odd = sorted(dim for dim in dims if dim % GROUP)
    if wanted not in ("auto", "f16") and odd:
        raise RequestError(
            f"keys and values of this model cannot be stored as {wanted}",
            f"it needs heads whose dimensions are multiples of {GROUP}, not {odd[0]}",
            "choose f16",
        )
    if wanted == "auto":
        return "q8_0" if backend == "cpu" and not odd else "f16"
    return wanted


def kv_bytes_per_token(states: tuple[State, ...], kv_dtype: str) -> float:
    """Bytes of keys and values that one position takes over all layers that attend."""
    layers = [s for s in states if isinstance(s, KVState)]
    dims = sum(s.n_heads * (s.head_dim + (0 if s.v_from_k else s.head_dim_v)) for s in layers)
    return dims * BYTES_A_NUMBER[kv_dtype]


def state_bytes_per_sequence(states: tuple[State, ...]) -> int:
    """Bytes of recurrent state that one sequence takes over all layers, however long it is."""
    return sum(4 * s.floats for s in states if isinstance(s, RecurrentState))


def choose_state_slots(states: tuple[State, ...], available: int, taken: int) -> int:
    """Recurrent states to hold beside `taken` of the available bytes, for weights and arena: at
    least one.

    Sequences that run and checkpoints share them.
    """
    each = state_bytes_per_sequence(states)
    if each == 0:
        return MAX_SEQUENCES
    room = available * (1 - MEMORY_RESERVE) - taken
    share = max(room * STATE_SHARE, min(4 * each, room / 4))
    return max(1, min(MAX_STATE_SLOTS, int(share / each)))


def choose_context(
    spec: ModelSpec,
    states: tuple[State, ...],
    kv_dtype: str,
    wanted: int | None,
    available: int,
    taken: int,
    chunk_tokens: int | None = None,
) -> int:
    """The context in tokens: what was asked for, or the model's own as far as memory goes.

    `taken` of the `available` bytes is what weights, arena and recurrent states need.
    chunk_tokens: as in `cache_layout`.
    Raises RequestError when `wanted` is out of range and MemoryLimitError when it does not fit.
    """
    room = available * (1 - MEMORY_RESERVE) - taken

    def needs_bytes(context: int) -> int:
        return context_bytes(states, context, kv_dtype, chunk_tokens)

    fits = _largest(spec.context, lambda context: needs_bytes(context) <= room)
    if wanted is None:
        context = min(spec.context, fits)
        if context < min(spec.context, 512):
            raise MemoryLimitError(
                "the model does not fit in memory",
                f"its weights need {taken / 1e9:.1f} GB and {available / 1e9:.1f} GB are available",
                "use a smaller model or quantisation",
            )
        return context
    check_context(spec, wanted)
    if wanted > fits:
        raise MemoryLimitError(
            f"a context of {wanted:,} tokens does not fit in memory",
            f"its keys and values need {needs_bytes(wanted) / 1e9:.1f} GB "
            f"and {max(0.0, room) / 1e9:.1f} GB are left beside the weights",
            f"choose {{context={max(1, fits)}}} or less"
            + (", or {kv_dtype=q8_0}" if kv_dtype == "f16" else ""),
        )
    return wanted


def check_context(spec: ModelSpec, wanted: int) -> None:
    """Raise RequestError if `wanted` tokens are more than the model was made for."""
    if not 1 <= wanted <= spec.context:
        raise RequestError(
            f"a context of {wanted:,} tokens is not possible",
            f"the model was made for 1 to {spec.context:,}",
            f"choose {{context={spec.context}}} or less, or extend it with {{rope_scaling=yarn}}",
        )


def choose_pool(
    states: tuple[State, ...],
    context: int,
    kv_dtype: str,
    available: int,
    taken: int,
    chunk_tokens: int | None = None,
) -> int:
    """Tokens that the cache holds for all sequences together, and for prefixes of earlier ones."""
    room = (available * (1 - MEMORY_RESERVE) - taken) * POOL_SHARE

    def fits(contexts: int) -> bool:
        layout = cache_layout(states, contexts * context, kv_dtype, 1, chunk_tokens)
        return cache_bytes(states, layout) <= room

    return context * max(1, _largest(POOL_CONTEXTS, fits))


def choose_swap() -> int:
    """Bytes of the host for copies of sequences that make room; taken only while they wait."""
    return int(available_memory_bytes() * SWAP_SHARE)


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to a limit that fits, or 0; what fits, fits when smaller."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def cache_layout(
    states: tuple[State, ...],
    tokens: int,
    kv_dtype: str,
    state_slots: int = 1,
    chunk_tokens: int | None = None,
) -> CacheLayout:
    """Blocks for `tokens` positions in all, and recurrent states for `state_slots` sequences.

    With `chunk_tokens`, the most that a sequence runs in a step, layers with a sliding window get a
    group each window, with blocks for the window only. Without it every layer keeps every position.
    """
    n_blocks = -(-tokens // BLOCK_TOKENS)
    if chunk_tokens is None:
        return CacheLayout(BLOCK_TOKENS, (n_blocks,), kv_dtype, state_slots=state_slots)
    layers = [s for s in states if isinstance(s, KVState)]
    windows = sorted({s.window for s in layers}) or [0]
    most = [
        WINDOW_SEQUENCES * window_blocks(w, chunk_tokens, BLOCK_TOKENS) if w else n_blocks
        for w in windows
    ]
    return CacheLayout(
        BLOCK_TOKENS,
        tuple(min(n_blocks, n) for n in most),
        kv_dtype,
        group_of={s.name: windows.index(s.window) for s in layers},
        state_slots=state_slots,
    )


def context_bytes(
    states: tuple[State, ...],
    context: int,
    kv_dtype: str,
    chunk_tokens: int | None = BATCH_TOKENS,
) -> int:
    """Bytes of keys and values that a context takes; sliding windows are kept as windows."""
    return cache_bytes(states, cache_layout(states, context, kv_dtype, 1, chunk_tokens))


def cache_groups(states: tuple[State, ...], layout: CacheLayout) -> list[Group]:
    """The groups of a layout: a window where all layers of a group have the same."""
    groups = []
    for i, n_blocks in enumerate(layout.n_blocks):
        members = [
            s for s in states if isinstance(s, KVState) and layout.group_of.get(s.name, 0) == i
        ]
        windows = {s.window for s in members}
        window = windows.pop() if len(windows) == 1 else 0
        block_bytes = kv_bytes_per_token(tuple(members), layout.kv_dtype) * layout.block_tokens
        groups.append(Group(n_blocks, window, round(block_bytes)))
    return groups


def cache_bytes(states: tuple[State, ...], layout: CacheLayout) -> int:
    """Bytes of keys and values in a layout."""
    return sum(group.n_blocks * group.block_bytes for group in cache_groups(states, layout))


def upload(
    file: GGUFFile,
    plan: Plan,
    backend: Backend,
    progress: Callable[[int, int], None] | None = None,
    digests: TensorDigests | None = None,
) -> None:
    """Hand every weight of `plan` to `backend`, the largest first.

    A backend may read a tensor whole before it packs it: the largest ones do so while the others
    are not in memory yet. `progress` is called with bytes done and bytes in all. `digests` hashes
    the tensors as they are read. Raises FormatError when the file cannot be read.
    """
    tensors = [(w, file.tensors[w.tensor]) for w in plan.weights]
    tensors.sort(key=lambda pair: pair[1].n_bytes, reverse=True)
    total = sum(t.n_bytes for _, t in tensors)
    done = 0
    if isinstance(backend, Expecting):
        backend.expect([weight for weight, _ in tensors])
    for weight, tensor in tensors:
        reader = tensor if digests is None else digests.reader(tensor)
        backend.upload(weight, tensor_data(weight, tensor, reader))
        done += tensor.n_bytes
        if progress is not None:
            progress(done, total)
