"""Choice of a quantisation for a download whose name states none.

Q8_0 is chosen if that file has at most SMALL_BYTES, because small models lose most below 8 bits and
are fast anyway. For larger models about 4 bits are chosen: the loss is small, and decode, which
reads every weight for each token, is fast. If that does not fit in memory, the next smaller
quantisation that fits is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from zinc.core.dataclass import dataclass
from zinc.core.errors import MemoryLimitError
from zinc.hub.variants import Variant

SMALL_BYTES = 1_500_000_000
# In order of preference: the best of about 4 bits first, then smaller and smaller ones.
_BALANCED = (
    "UD-Q4_K_XL", "Q4_K_M", "UD-Q4_K_M", "Q4_K_L", "MXFP4", "MXFP4_MOE", "UD-Q4_K_S", "Q4_K_S",
    "IQ4_NL", "UD-IQ4_XS", "IQ4_XS", "Q4_1", "Q4_0", "UD-Q3_K_XL", "Q3_K_XL", "Q3_K_L", "Q3_K_M",
    "UD-IQ3_XXS", "IQ3_M", "Q3_K_S", "IQ3_XS", "IQ3_XXS", "UD-Q2_K_XL", "Q2_K_L", "Q2_K",
    "UD-IQ2_M", "IQ2_M", "IQ2_S", "UD-IQ2_XXS", "IQ2_XS", "IQ2_XXS", "UD-IQ1_M", "IQ1_M",
    "UD-IQ1_S", "IQ1_S",
)  # fmt: skip
# In order of preference, for a repository without any of the above.
_LARGER = ("UD-Q5_K_XL", "Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "BF16", "F16", "F32")


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory that a variant needs, the memory that is available, and the speed it allows.

    needed_bytes: weights, KV cache, recurrent state and scratch memory.
    context_tokens: the context that needed_bytes counts. tokens_per_s: the speed of decode that the
    bandwidth of memory allows; None if it is not known.
    """

    needed_bytes: int
    available_bytes: int
    context_tokens: int
    tokens_per_s: float | None = None

    @property
    def fits(self) -> bool:
        """Whether the variant fits."""
        return self.needed_bytes <= self.available_bytes


FitCheck: TypeAlias = Callable[[Variant], Fit]


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant to download.

    why: the reason, as a clause. fit: the memory that it needs; None if memory was not checked.
    """

    variant: Variant
    why: str
    fit: Fit | None = None


def choose(variants: Sequence[Variant], check: FitCheck | None, repo: str) -> Choice:
    """Return the variant to download. check: None ignores the memory.

    Raises MemoryLimitError if none fits. variants: at least one.
    """
    ranked = _ranked(variants)
    if check is None:
        return Choice(ranked[0], _quality(ranked[0]))
    tried: list[tuple[Variant, Fit]] = []
    for variant in ranked:
        fit = check(variant)
        if fit.fits:
            return Choice(variant, _why(variant, fit, tried), fit)
        tried.append((variant, fit))
    smallest, fit = min(tried, key=lambda entry: entry[1].needed_bytes)
    raise MemoryLimitError(
        f"no quantisation of {repo} fits in memory",
        f"{smallest.label} needs {_size(fit.needed_bytes)} with a context of "
        f"{fit.context_tokens:,} tokens, and {_size(fit.available_bytes)} are available",
        f"choose a smaller model, or name a quantisation to download it anyway: "
        f"{repo}:{smallest.label}",
    )


def _ranked(variants: Sequence[Variant]) -> list[Variant]:
    by_label = {variant.label: variant for variant in reversed(variants)}
    small = by_label.get("Q8_0")
    labels = [
        *(("Q8_0",) if small and small.n_bytes <= SMALL_BYTES else ()),
        *_BALANCED,
        *_LARGER,
    ]
    known = [by_label[label] for label in dict.fromkeys(labels) if label in by_label]
    # Variants with unknown labels come last, smallest first, as the smallest is likeliest to fit.
    return [*known, *(variant for variant in variants if variant.label not in labels)]


def _why(variant: Variant, fit: Fit, tried: Sequence[tuple[Variant, Fit]]) -> str:
    reason = "the best that fits" if tried else _quality(variant)
    speed = "" if fit.tokens_per_s is None else f"; decode up to {fit.tokens_per_s:,.0f} tokens/s"
    return (
        f"{reason}; it needs {_size(fit.needed_bytes)} with a context of "
        f"{fit.context_tokens:,} tokens, and {_size(fit.available_bytes)} are available{speed}"
    )


def _quality(variant: Variant) -> str:
    if variant.label == "Q8_0" and variant.n_bytes <= SMALL_BYTES:
        return "the model is small, so 8 bits cost little"
    if variant.label in _BALANCED:
        return "the best balance of quality, size and speed"
    return "the smallest that the repository has"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"
