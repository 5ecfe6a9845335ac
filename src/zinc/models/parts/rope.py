"""Inverse frequencies of rotary position embeddings, with the scalings that model files ask for.

Sources: Su et al. 2021 (RoPE), Chen et al. 2023 (linear interpolation), Peng et al. 2023 (YaRN,
section 3.2 for the ramp and 3.4 for the attention factor), the Llama 3.1 model card (per-frequency
divisors, which GGUF stores in `rope_freqs.weight`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.ops.values import Constant


@dataclass(frozen=True, slots=True)
class Rope:
    """`dims` leading dimensions of a head rotate; `neox` pairs i with i + dims/2, else 2i, 2i+1."""

    dims: int
    base: float
    neox: bool
    scaling: str = "none"  # none, linear or yarn; longrope: `divisors` are the long ones
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the ramp of YaRN begins and ends at whole dimensions
    divisors: tuple[float, ...] | None = None
    long_divisors: tuple[float, ...] | None = None  # instead, beyond the original context

    def beyond_original(self) -> Rope:
        """The same for sequences that are longer than the original context."""
        if self.long_divisors is None:
            return self
        return replace(self, divisors=self.long_divisors, long_divisors=None, scaling="longrope")

    def inverse_frequencies(self) -> Constant:
        """theta_i = base^(-2i / dims), divided and interpolated as the scaling says."""
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
        return Constant(name + ("_divided" if self.divisors else ""), tuple(plain))

    @property
    def scale(self) -> float:
        """What cosines and sines are multiplied by (the temperature of YaRN)."""
        if self.scaling != "yarn":
            return self.attention_factor
        return self.attention_factor * (1.0 + 0.1 * math.log(self.factor))

    def _correction_range(self) -> tuple[float, float]:
        def dimension(rotations: float) -> float:
            wavelengths = self.original_context / (rotations * 2 * math.pi)
            return self.dims * math.log(wavelengths) / (2 * math.log(self.base))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(0.0, low), min(self.dims - 1.0, high)


def rope_from(
    file: GGUFFile, arch: str, head_dim: int, *, neox: bool, base: float | None = None
) -> Rope:
    """Reads `{arch}.rope.*` and the tensors of frequency divisors.

    Those are `rope_freqs`, or the pair `rope_factors_short` and `rope_factors_long` (LongRoPE, Ding
    et al. 2024), which stands for the whole scaling. Raises UnsupportedError for a scaling type
    that is not known, and ModelError for numbers that make no sense.
    """
    dims = check_dims(file, file.int(f"{arch}.rope.dimension_count", default=head_dim), head_dim)
    if base is None:
        base = file.float(f"{arch}.rope.freq_base", default=10000.0)
    freqs, short, long = (
        divisors_from(file, f"rope_{name}.weight", dims)
        for name in ("freqs", "factors_short", "factors_long")
    )
    if (short is None) != (long is None):
        raise ModelError(
            f"cannot load {file.path}",
            "of the tensors rope_factors_short.weight and rope_factors_long.weight one is missing",
            "the file is incomplete; convert or download it again",
        )
    scaling, factor = _scaling(file, arch)
    if scaling == "longrope" and long is not None:
        scaling = "none"
    if scaling not in ("none", "linear", "yarn"):
        raise UnsupportedError(
            f"cannot load {file.path}",
            f"its RoPE scaling type is {scaling!r}, and zinc knows none, linear and yarn",
            "use another conversion of the model",
        )
    needed = {"yarn": ("original_context_length",)}.get(scaling, ())
    for key in needed if long is None else ("attn_factor", "original_context_length"):
        if f"{arch}.rope.scaling.{key}" not in file.metadata:
            raise incomplete(file, f"{arch}.rope.scaling.{key}")
    original_context = file.int(
        f"{arch}.rope.scaling.original_context_length",
        default=file.int(f"{arch}.context_length", default=4096),
    )
    check_range(file, f"{arch}.rope.freq_base", base, 1.5)
    check_range(file, f"{arch}.rope.scaling.factor", factor, 1e-6)
    check_range(file, f"{arch}.rope.scaling.original_context_length", original_context)

    def number(name: str, default: float) -> float:
        key = f"{arch}.rope.scaling.{name}"
        return check_range(file, key, file.float(key, default=default), 1e-6)

    return Rope(
        dims=dims,
        base=base,
        neox=neox,
        scaling=scaling if factor != 1.0 else "none",
        factor=factor,
        original_context=original_context,
        attention_factor=number("attn_factor", 1.0),
        beta_fast=number("yarn_beta_fast", 32.0),
        beta_slow=number("yarn_beta_slow", 1.0),
        divisors=freqs if short is None else short,
        long_divisors=long,
    )


def _scaling(file: GGUFFile, arch: str) -> tuple[str, float]:
    """Type and factor of the scaling that the file asks for.

    A factor without a type is linear, as ggml has it; `rope.scale_linear` is the key of files from
    before `rope.scaling.*`.
    """
    old = file.float(f"{arch}.rope.scale_linear", default=None)
    factor = file.float(f"{arch}.rope.scaling.factor", default=old)
    implied = "none" if factor in (None, 0.0, 1.0) else "linear"
    key = f"{arch}.rope.scaling.type"
    if implied == "linear" and f"{arch}.rope.scaling.original_context_length" in file.metadata:
        file.str(key)  # linear scaling has no use for it: another type is meant
    type = file.str(key, default=implied)
    if type in ("linear", "yarn") and factor is None:
        raise incomplete(file, f"{arch}.rope.scaling.factor")
    return type, (1.0 if type == "none" else factor) or 1.0


def incomplete(file: GGUFFile, key: str) -> ModelError:
    """The error for a metadata key without which the result would be another."""
    return ModelError(
        f"cannot load {file.path}",
        f"it has no metadata key {key}",
        "the file is incomplete; convert or download it again",
    )


def sliding_rope(file: GGUFFile, arch: str, dims: int, head_dim: int) -> Rope:
    """The RoPE of sliding layers that have a base of their own: `rope.freq_base_swa`, unscaled."""
    key = f"{arch}.rope.freq_base_swa"
    base = check_range(file, key, file.float(key, default=10000.0), 1.5)
    return Rope(check_dims(file, dims, head_dim), base, neox=True)


def check_range(file: GGUFFile, key: str, value: float, low: float = 1.0) -> float:
    """`value` when it lies between `low` and 1e15; raises ModelError otherwise (NaN does not)."""
    if not low <= value < 1e15:
        raise ModelError(
            f"cannot load {file.path}",
            f"{key} is {value}, which is out of range",
            "the file is damaged; download or convert it again",
        )
    return value


def check_dims(file: GGUFFile, dims: int, head_dim: int) -> int:
    """`dims` when that many dimensions of a head can rotate; raises ModelError otherwise."""
    if not 0 < dims <= head_dim or dims % 2:
        raise ModelError(
            f"cannot load {file.path}",
            f"RoPE over {dims} dimensions does not fit heads of {head_dim}",
            "the file is damaged; download or convert it again",
        )
    return dims


def divisors_from(file: GGUFFile, name: str, dims: int) -> tuple[float, ...] | None:
    """The tensor of frequency divisors of that name, None without one; ModelError if it is not
    one positive number a pair of `dims`."""
    tensor = file.tensors.get(name)
    if tensor is None:
        return None
    if tuple(tensor.shape) != (dims // 2,):
        raise ModelError(
            f"cannot load {file.path}",
            f"the tensor {name} has shape {list(tensor.shape)}, "
            f"but the metadata implies {[dims // 2]}",
            "the file is damaged or converted wrongly; convert or download it again",
        )
    divisors = tuple(tensor.to_float32().tolist())
    if not all(d > 0 for d in divisors):
        raise ModelError(
            f"cannot load {file.path}",
            f"the tensor {name} has a divisor that is not positive",
            "the file is damaged; download or convert it again",
        )
    return divisors
