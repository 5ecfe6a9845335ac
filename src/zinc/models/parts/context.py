"""How far a model's context reaches, and with which RoPE frequencies.

Frequencies for long contexts (YaRN, linear interpolation, LongRoPE) cost quality in texts that need
none of it. So a sequence runs with the plain ones up to the original context and with the others
beyond: a model has up to two specs, of the same weights and the same cache. Models that were
trained with a scaling (gpt-oss, DeepSeek) have it at every length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from zinc.core.errors import RequestError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.formats.metadata import MetadataValue
from zinc.models.parts.rope import Rope
from zinc.models.parts.spec import ModelSpec

TYPES = ("none", "linear", "yarn")
MAX_FACTOR, MAX_CONTEXT = 1024.0, 1 << 30


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """What a load asks for in place of the file's own scaling; None leaves a value to it.

    type: "none", "linear" or "yarn" (None: the file's, else yarn). factor: how many times the
    original context there is to be (None: the file's, else what the wanted context needs).
    original_context: tokens that the plain frequencies are good for (None: the file's). always:
    scale short sequences as well.
    """

    type: str | None = None
    factor: float | None = None
    original_context: int | None = None
    always: bool = False

    def __post_init__(self) -> None:
        if self.type not in (None, *TYPES):
            raise RequestError(
                f"there is no RoPE scaling {self.type!r}", "", f"choose {', '.join(TYPES)}"
            )
        if self.type == "none" and (self.factor is not None or self.always):
            raise RequestError(
                "the RoPE scaling 'none' has no factor", "it leaves out what the file asks for",
                "choose linear or yarn",
            )  # fmt: skip
        if self.factor is not None and not 1.0 < self.factor <= MAX_FACTOR:
            raise RequestError(
                f"a RoPE factor of {self.factor:g} is not possible",
                f"it must be more than 1 and at most {MAX_FACTOR:g}",
            )
        original = self.original_context
        if original is not None and not 0 < original <= MAX_CONTEXT:
            raise RequestError(
                f"an original context of {original:,} tokens is not possible",
                f"it must lie between 1 and {MAX_CONTEXT:,}",
            )


def specs(
    read: Callable[[GGUFFile], ModelSpec],
    file: GGUFFile,
    arch: str,
    asked: RopeScaling | None = None,
    context: int | None = None,
) -> tuple[ModelSpec, ModelSpec | None]:
    """The spec for sequences up to its `plain_context`, and the one beyond (None: the same).

    read: the architecture's own. context: the longest sequence that is wanted.
    """
    plain, extended = _of_file(read, file, arch)
    if asked is None or asked == RopeScaling():
        return plain, extended
    if asked.type == "none":
        originals = [r.original_context for r in plain.ropes() if _is_scaled(r)]
        until = min([plain.plain_context or plain.context, *originals])
        spec = read(file.with_metadata(_keys(arch, "none")))
        return replace(spec, context=until), None
    if any(rope.long_divisors for rope in plain.ropes()):
        raise UnsupportedError(
            f"cannot scale the RoPE of {file.path}",
            "it has frequencies of its own for long contexts (LongRoPE)",
            "leave the scaling to the file",
        )
    scaled = _scaled(read, file, arch, asked, context, plain)
    if scaled is None:
        return plain, extended
    if asked.always or scaled.ropes() == plain.ropes():
        return scaled, None
    until = plain.plain_context or plain.context
    if asked.original_context and not any(_is_scaled(rope) for rope in plain.ropes()):
        until = asked.original_context
    if until >= scaled.context:
        raise RequestError(
            f"the context would reach {scaled.context:,} tokens with this scaling",
            f"it reaches {until:,} without it",
            "choose a larger {rope_scale}, or {rope_always} to scale every sequence",
        )
    return _joined(plain, scaled, until)


def _of_file(
    read: Callable[[GGUFFile], ModelSpec], file: GGUFFile, arch: str
) -> tuple[ModelSpec, ModelSpec | None]:
    """The specs that the file implies."""
    stated = read(file)
    long = [rope.original_context for rope in stated.ropes() if rope.long_divisors]
    if long:
        extended = stated.map_ropes(lambda rope: rope.beyond_original())
        return _joined(stated, extended, min(long))
    scaled = [rope for rope in stated.ropes() if _is_scaled(rope)]
    if not stated.scaling_is_optional or not scaled:
        return stated, None
    reach = max(stated.context, _reach(scaled[0].factor, scaled[0].original_context))
    plain = read(file.with_metadata(_keys(arch, "none")))
    return _joined(plain, replace(stated, context=reach), scaled[0].original_context)


def _scaled(
    read: Callable[[GGUFFile], ModelSpec],
    file: GGUFFile,
    arch: str,
    asked: RopeScaling,
    context: int | None,
    plain: ModelSpec,
) -> ModelSpec | None:
    """The model with the scaling that is asked for, or None when the context needs none."""
    stated = next((rope for rope in read(file).ropes() if _is_scaled(rope)), None)
    type = asked.type or (stated.scaling if stated else "yarn")
    original = asked.original_context or (stated.original_context if stated else plain.context)
    factor = asked.factor or (stated.factor if stated and stated.scaling == type else None)
    if factor is None:
        if context is None:
            raise RequestError(
                "it is not said how far the context is to reach",
                f"{file.path} has no factor for it",
                "give one with {rope_scale}, or the tokens with {context}",
            )
        if context <= original and not asked.always:
            return None
        factor = context / original
    if not 1.0 < factor <= MAX_FACTOR:
        raise RequestError(
            f"a RoPE factor of {factor:g} is not possible",
            f"the original context is {original:,} tokens",
            f"choose a factor of more than 1 and at most {MAX_FACTOR:g}",
        )
    spec = read(file.with_metadata(_keys(arch, type, factor, original)))
    return replace(spec, context=_reach(factor, original))


def _joined(
    plain: ModelSpec, extended: ModelSpec, until: int
) -> tuple[ModelSpec, ModelSpec | None]:
    """Both specs, of one context: `plain` up to `until` tokens and `extended` beyond."""
    if until >= extended.context:
        return plain, None
    return (
        replace(plain, context=extended.context, plain_context=until),
        replace(extended, plain_context=until),
    )


def _is_scaled(rope: Rope) -> bool:
    return rope.scaling != "none" or rope.long_divisors is not None


def _reach(factor: float, original: int) -> int:
    return min(MAX_CONTEXT, round(factor * original))


def _keys(
    arch: str, type: str, factor: float = 1.0, original: int | None = None
) -> dict[str, MetadataValue]:
    """Metadata of a file that asks for this scaling."""
    keys: dict[str, MetadataValue] = {
        f"{arch}.rope.scaling.type": type,
        f"{arch}.rope.scaling.factor": float(factor),
    }
    if original is not None:
        keys[f"{arch}.rope.scaling.original_context_length"] = original
    return keys
