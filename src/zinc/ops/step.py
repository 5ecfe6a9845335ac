"""The inputs of one step: the batch of tokens and the block tables of their caches."""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.ops.penalties import RowPenalties, StepPenalties
from zinc.ops.values import Dim, FloatArray

IntArray: TypeAlias = npt.NDArray[np.int32]

MOST_TOKENS = 1 << 31  # more than a step can have
MOST_BANNED = 7  # tokens that the device can ban in an output row


class SampleParams(NamedTuple):
    """Parameters with which the device samples the token of an output row (`zinc.ops.sampling`).

    k: sample from the k most likely tokens; 1 takes the most likely one, 0 leaves the row to the
    host. token_index, seed: those of the draw (`zinc.ops.noise`). banned: at most MOST_BANNED
    tokens, which are not sampled. penalties: rewrite the logits first; None if there are none.
    """

    k: int
    min_keep: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    temperature: float = 1.0
    token_index: int = 0
    seed: int = 0
    banned: tuple[int, ...] = ()
    penalties: RowPenalties | None = None


SAMPLE_PARAMS = np.dtype(
    [
        ("k", "<i4"),
        ("min_keep", "<i4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("temperature", "<f4"),
        ("token_index", "<u4"),
        ("seed", "<u8"),
        ("n_banned", "<u4"),
        ("banned", "<u4", (MOST_BANNED,)),
    ]
)
SampleParamsArray: TypeAlias = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class StepCondition:
    """A condition on a step: `tokens` tokens, first to last, and at least `min_keys` keys.

    Keys are the cached positions of the longest sequence after the step. is_decode: every sequence
    has exactly one token, or the sizes of the step are within those of a pair (tokens, keys) in
    `or_few`. A launch with a condition runs in the steps that meet it.
    """

    tokens: tuple[int, int] = (1, MOST_TOKENS)
    min_keys: int = 0
    is_decode: bool = False
    or_few: tuple[tuple[int, int], ...] = ()

    def holds(self, tokens: int, keys: int, is_decode: bool) -> bool:
        """Return whether a step with these sizes (`Step`) meets the condition."""
        first, last = self.tokens
        is_few = any(tokens <= most and keys <= deepest for most, deepest in self.or_few)
        meets = first <= tokens <= last and keys >= self.min_keys
        return meets and (is_decode or is_few or not self.is_decode)

    def excludes(self, other: StepCondition) -> bool:
        """Return whether no step meets both conditions, because of its tokens."""
        return self.tokens[1] < other.tokens[0] or other.tokens[1] < self.tokens[0]

    def __str__(self) -> str:
        first, last = self.tokens
        if self.is_decode:
            one = "1 token a sequence"
            if last < MOST_TOKENS:
                one += f" in steps of up to {last}"
            few = [f"up to {most} after {keys}" for most, keys in self.or_few]
            tokens = ", or ".join([one, *few])
        elif first == last:
            tokens = "1 token" if first == 1 else f"{first} tokens"
        else:
            tokens = f"{first} to {last} tokens" if last < MOST_TOKENS else f"{first}+ tokens"
        return f"{tokens}, {self.min_keys}+ keys" if self.min_keys else tokens


ONE_TOKEN = StepCondition((1, 1))


@dataclass(frozen=True, slots=True)
class Otherwise:
    """The condition of a launch that alternatives replace: the step meets none of `conditions`."""

    conditions: tuple[StepCondition, ...]

    def holds(self, tokens: int, keys: int, is_decode: bool) -> bool:
        """Return whether a step with these sizes (`Step`) meets none of the conditions."""
        return not any(x.holds(tokens, keys, is_decode) for x in self.conditions)

    def __str__(self) -> str:
        return "otherwise"


@dataclass(frozen=True, slots=True)
class Step:
    """A ragged batch of tokens from one or more sequences.

    The tokens of a sequence are adjacent and in order of position. Prefill, decode and
    verification differ only in how many tokens each sequence brings.

    ids, positions, sequence: int32 [tokens]. output_rows: int32 [outputs], the token rows whose
    logits are wanted. seq_start: int32 [sequences + 1], first token row of each sequence.
    state_slot: int32 [sequences], slot of each recurrent state. tables: one block table int32
    [sequences, blocks] for each group of layers (see `KVState.window`), -1 where no block is held.
    sample_params: SAMPLE_PARAMS [outputs], if the program is to sample tokens. penalties: those of
    the output rows; None if no row has any. sampled_rows: int32 [tokens] or None; if given, `ids`
    are not read, and the id of token i is the token that the program's previous step sampled for
    output row sampled_rows[i]. adapters: float32 [sequences, adapters], the scale with which a
    sequence uses each adapter, 0 if it does not; None if no sequence uses any.
    """

    ids: IntArray
    positions: IntArray
    sequence: IntArray
    output_rows: IntArray
    seq_start: IntArray
    state_slot: IntArray
    tables: tuple[IntArray, ...] = field(default_factory=tuple)
    sample_params: SampleParamsArray | None = None
    penalties: StepPenalties | None = None
    sampled_rows: IntArray | None = None
    adapters: FloatArray | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def n_sequences(self) -> int:
        return len(self.seq_start) - 1

    @property
    def n_keys(self) -> int:
        """Cached positions of the longest sequence after the step."""
        return int(max(self.positions.tolist())) + 1

    @property
    def is_decode(self) -> bool:
        """Whether every sequence has exactly one token."""
        return bool(self.seq_start.tolist() == list(range(self.n_tokens + 1)))

    def rows(self, dim: Dim) -> int:
        """Return the number of rows that a value of `dim` has in this step."""
        match dim:
            case Dim.TOKENS:
                return self.n_tokens
            case Dim.OUTPUTS:
                return len(self.output_rows)
            case Dim.SEQUENCES:
                return self.n_sequences
            case _:
                return 1

    def part(self, first: int, last: int) -> Step:
        """Return the step with the token rows from `first` up to but not including `last`.

        Parts that run one after the other do what the step does, if attention is causal. Output
        rows keep their order. A part without output rows has no `sample_params`, nor penalties.
        """
        ends = np.clip(self.seq_start, first, last) - first
        held = np.flatnonzero(np.diff(ends))
        rows = self.output_rows
        chosen = (rows >= first) & (rows < last)
        params, sampled, penalties = self.sample_params, self.sampled_rows, self.penalties
        return Step(
            self.ids[first:last],
            self.positions[first:last],
            self.sequence[first:last] - self.sequence[first],
            rows[chosen] - first,
            np.append(ends[held], last - first).astype(np.int32),
            self.state_slot[held],
            tuple(table[held] for table in self.tables),
            sample_params=None if params is None or not chosen.any() else params[chosen],
            penalties=None if penalties is None or not chosen.any() else penalties.part(chosen),
            sampled_rows=None if sampled is None else sampled[first:last],
            adapters=None if self.adapters is None else self.adapters[held],
        )

    def adapter_scales(self, adapter: int, *, of_outputs: bool) -> FloatArray:
        """Return the scale of an adapter for each token row, or for each output row."""
        rows = self.sequence[self.output_rows] if of_outputs else self.sequence
        if self.adapters is None:
            return np.zeros(len(rows), np.float32)
        scales: FloatArray = self.adapters[rows, adapter]
        return scales

    def with_ids(self, sampled: IntArray) -> Step:
        """Return the step with its ids filled in from `sampled`, the tokens of the previous step.

        sampled: int32 [output rows of the previous step].
        """
        if self.sampled_rows is None:
            return self
        return replace(self, ids=sampled[self.sampled_rows], sampled_rows=None)
