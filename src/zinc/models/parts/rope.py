"""Rotary position embeddings: inverse frequencies, and the scalings in model files.

Sources: Su et al. 2021 (RoPE), Chen et al. 2023 (linear interpolation), Peng et al. 2023 (YaRN,
section 3.2 for the ramp and 3.4 for the attention factor), the Llama 3.1 model card (per-frequency
divisors, which GGUF stores in `rope_freqs.weight`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import damaged, incomplete, missing_key, unsupported
from zinc.ops.values import Constant


@dataclass(frozen=True, slots=True)
class Rope:
    """RoPE over the first `dims` dimensions of a head.

    neox: pairs dimensions i and i + dims/2, else 2i and 2i + 1. scaling: none, linear, yarn, or
    longrope (then `divisors` are those for long contexts). factor: context extension. truncate: the
    YaRN ramp starts and ends at whole dimensions. divisors: divide the frequencies, one for each
    pair. long_divisors: take their place beyond the original context. log_scale: cosines and sines
    grow by the factor 1 + log_scale * log(1 + (position + offset) // original_context). unrotated:
    dimensions after `dims` that grow too, without rotation; only for pairs of neighbours.
    """

    dims: int
    base: float
    neox: bool
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] | None = None
    long_divisors: tuple[float, ...] | None = None
    log_scale: float = 0.0
    offset: int = 0
    unrotated: int = 0

    def beyond_original(self) -> Rope:
        """Return the RoPE for sequences longer than the original context."""
        if self.long_divisors is None:
            return self
        return replace(self, divisors=self.long_divisors, long_divisors=None, scaling="longrope")

    def first_half(self) -> Rope:
        """Return the RoPE over the first half of the dimensions, with the divisors of these."""
        dims = self.dims // 2
        return replace(self, dims=dims, divisors=self.divisors and self.divisors[: dims // 2])

    def inverse_frequencies(self) -> Constant:
        """Return theta_i = base^(-2i / dims), divided and interpolated according to the scaling."""
        plain = [self.base ** (-2.0 * i / self.dims) for i in range(self.dims // 2)]
        if self.divisors is not None:
            plain = [f / d for f, d in zip(plain, self.divisors, strict=True)]
        if self.scaling == "linear":
            plain = [f / self.factor for f in plain]
        elif self.scaling == "yarn":
            low, high = self._correction_range()
            plain = [
                f / self.factor * (1 - keep) + f * keep
                for i, f in enumerate(plain)
                for keep in [1.0 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))]
            ]
        factor = "" if self.factor == 1.0 else f"_{self.factor:g}"
        name = f"rope_{self.dims}_{self.base:g}_{self.scaling}{factor}"
        name += "_divided" if self.divisors else ""
        if self.unrotated:
            assert not self.neox
            name += f"_and_{self.unrotated}"
            plain += [0.0] * (self.unrotated // 2)
        return Constant(name, tuple(plain))

    @property
    def scale(self) -> float:
        """The factor that multiplies cosines and sines (the attention temperature of YaRN)."""
        if self.scaling != "yarn":
            return self.attention_factor
        return self.attention_factor * (1.0 + 0.1 * math.log(self.factor))

    def without_temperature(self) -> Rope:
        """Return this RoPE with `attention_factor` as scale, without the temperature of YaRN."""
        return self.with_temperature(1.0)

    def with_temperature(self, temperature: float) -> Rope:
        """Return this RoPE with `temperature` in place of that of YaRN."""
        return replace(self, attention_factor=self.attention_factor**2 * temperature / self.scale)

    def _correction_range(self) -> tuple[float, float]:
        """Return the first and the last dimension of the YaRN ramp."""

        def dimension(rotations: float) -> float:
            wavelengths = self.original_context / (rotations * 2 * math.pi)
            return self.dims * math.log(wavelengths) / (2 * math.log(self.base))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(0.0, low), min(self.dims - 1.0, high)


def rope_from(file: GGUFFile, arch: str, head_dim: int, *, neox: bool) -> Rope:
    """Return the RoPE that `{arch}.rope.*` and the tensors of frequency divisors describe.

    The tensors are `rope_freqs`, or the pair `rope_factors_short` and `rope_factors_long`
    (LongRoPE, Ding et al. 2024), which replaces other scaling. Raises UnsupportedError for an
    unknown scaling type and ModelError for impossible numbers.
    """
    dims = check_dims(file, file.int(f"{arch}.rope.dimension_count", default=head_dim), head_dim)
    base = file.float(f"{arch}.rope.freq_base", default=10000.0)
    freqs, short, long = (
        divisors_from(file, f"rope_{name}.weight", dims)
        for name in ("freqs", "factors_short", "factors_long")
    )
    if (short is None) != (long is None):
        raise incomplete(
            file,
            "either rope_factors_short.weight or rope_factors_long.weight is missing",
        )
    scaling, factor = _scaling(file, arch)
    if scaling == "longrope" and long is not None:
        scaling = "none"
    _check_scaling(file, arch, scaling, is_long=long is not None)
    original_context = file.int(
        f"{arch}.rope.scaling.original_context_length",
        default=file.int(f"{arch}.context_length", default=4096),
    )
    check_range(file, f"{arch}.rope.freq_base", base, 1.5)
    check_range(file, f"{arch}.rope.scaling.factor", factor, 1e-6)
    check_range(file, f"{arch}.rope.scaling.original_context_length", original_context)
    return Rope(
        dims=dims,
        base=base,
        neox=neox,
        scaling=scaling if factor != 1.0 else "none",
        factor=factor,
        original_context=original_context,
        attention_factor=_scaling_number(file, arch, "attn_factor", 1.0),
        beta_fast=_scaling_number(file, arch, "yarn_beta_fast", 32.0),
        beta_slow=_scaling_number(file, arch, "yarn_beta_slow", 1.0),
        divisors=freqs if short is None else short,
        long_divisors=long,
    )


def _scaling(file: GGUFFile, arch: str) -> tuple[str, float]:
    """Return type and factor of the scaling in the file.

    As in ggml, a factor without a type means linear scaling. Older files have `rope.scale_linear`
    in place of `rope.scaling.*`.
    """
    old = file.float(f"{arch}.rope.scale_linear", default=None)
    factor = file.float(f"{arch}.rope.scaling.factor", default=old)
    implied = "none" if factor in (None, 0.0, 1.0) else "linear"
    key = f"{arch}.rope.scaling.type"
    if implied == "linear" and f"{arch}.rope.scaling.original_context_length" in file.metadata:
        file.str(key)  # linear scaling does not use it, so the type must not be missing
    type = file.str(key, default=implied)
    if type in ("linear", "yarn") and factor is None:
        raise missing_key(file, f"{arch}.rope.scaling.factor")
    return type, (1.0 if type == "none" else factor) or 1.0


def _check_scaling(file: GGUFFile, arch: str, scaling: str, *, is_long: bool) -> None:
    """Raise UnsupportedError for an unknown type of scaling, ModelError for keys that it lacks.

    is_long: the file has LongRoPE's divisors for long contexts.
    """
    if scaling not in ("none", "linear", "yarn"):
        raise unsupported(
            file,
            f"its RoPE scaling type is {scaling!r}, and zinc knows none, linear and yarn",
            "use another conversion of the model",
        )
    needed = {"yarn": ("original_context_length",)}.get(scaling, ())
    for key in ("attn_factor", "original_context_length") if is_long else needed:
        if f"{arch}.rope.scaling.{key}" not in file.metadata:
            raise missing_key(file, f"{arch}.rope.scaling.{key}")


def _scaling_number(file: GGUFFile, arch: str, name: str, default: float) -> float:
    """Return the number `{arch}.rope.scaling.{name}`. Raises ModelError if it is out of range."""
    key = f"{arch}.rope.scaling.{name}"
    return check_range(file, key, file.float(key, default=default), 1e-6)


def sliding_rope(
    file: GGUFFile, arch: str, dims: int, head_dim: int, base: float = 10000.0
) -> Rope:
    """Return the RoPE of sliding-window layers: `rope.freq_base_swa` or `base`, no scaling."""
    key = f"{arch}.rope.freq_base_swa"
    base = check_range(file, key, file.float(key, default=base), 1.5)
    return Rope(check_dims(file, dims, head_dim), base, neox=True)


def check_range(file: GGUFFile, key: str, value: float, low: float = 1.0) -> float:
    """Return `value` if it is from `low` to below 1e15. Raises ModelError otherwise."""
    if not low <= value < 1e15:
        raise damaged(file, f"{key} is {value}, which is out of range")
    return value


def check_dims(file: GGUFFile, dims: int, head_dim: int) -> int:
    """Return `dims` if it is even and at most `head_dim`. Raises ModelError otherwise."""
    if not 0 < dims <= head_dim or dims % 2:
        raise damaged(file, f"RoPE over {dims} dimensions does not fit heads of {head_dim}")
    return dims


def divisors_from(file: GGUFFile, name: str, dims: int) -> tuple[float, ...] | None:
    """Return the frequency divisors in a tensor, or None if the file lacks it.

    Raises ModelError unless it has one positive number for each pair of `dims`.
    """
    tensor = file.tensors.get(name)
    if tensor is None:
        return None
    if tuple(tensor.shape) != (dims // 2,):
        raise damaged(
            file,
            f"the tensor {name} has shape {list(tensor.shape)}, "
            f"but the metadata implies {[dims // 2]}",
        )
    divisors = tuple(tensor.to_float32().tolist())
    if not all(d > 0 for d in divisors):
        raise damaged(file, f"the tensor {name} has a divisor that is not positive")
    return divisors
