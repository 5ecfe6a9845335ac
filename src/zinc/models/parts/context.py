"""Context length of a model, and the RoPE frequencies for it.

Frequencies for long contexts (YaRN, linear interpolation, LongRoPE) cost quality in short texts. So
sequences up to the original context run with plain frequencies and longer ones with scaled
frequencies. A model then has two specs, which share weights and cache. Models trained with a
scaling (gpt-oss, DeepSeek) use it at every length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.formats.metadata import MetadataValue
from zinc.models.parts.rope import Rope
from zinc.models.parts.spec import ModelSpec

TYPES = ("none", "linear", "yarn")
MAX_FACTOR, MAX_CONTEXT = 1024.0, 1 << 30


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """RoPE scaling to use in place of the file's own; None takes a value from the file.

    type: "none", "linear" or "yarn" (None: the file's, else yarn). factor: context extension, as a
    multiple of the original context (None: the file's, else what the requested context needs).
    original_context: tokens up to which plain frequencies suffice (None: the file's). always: scale
    short sequences as well. Raises RequestError for impossible values.
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
                "the RoPE scaling 'none' has no factor", "it turns the scaling of the file off",
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
    requested: RopeScaling | None = None,
    context: int | None = None,
) -> tuple[ModelSpec, ModelSpec | None]:
    """Return the spec for sequences up to its `plain_context`, and that for longer ones.

    The second is None if all sequences run with the same frequencies. read: `spec` of the
    architecture. requested: the user's scaling. context: length of the longest sequence that
    is requested. Raises RequestError or UnsupportedError if the request is impossible.
    """
    plain, extended = _of_file(read, file, arch)
    if requested is None or requested == RopeScaling():
        return plain, extended
    if not plain.ropes():
        raise UnsupportedError(
            f"cannot scale the RoPE of {file.path}",
            "the model has none",
            "leave out the option",
        )
    if requested.type == "none":
        originals = [r.original_context for r in plain.ropes() if _is_scaled(r)]
        until = min([plain.plain_context or plain.context, *originals])
        spec = read(file.with_metadata(_keys(arch, "none")))
        return replace(spec, context=until), None
    if any(rope.long_divisors for rope in plain.ropes()):
        raise UnsupportedError(
            f"cannot scale the RoPE of {file.path}",
            "the file has its own frequencies for long contexts (LongRoPE)",
            "leave out the option",
        )
    scaled = _scaled(read, file, arch, requested, context, plain)
    if scaled is None:
        return plain, extended
    if requested.always or scaled.ropes() == plain.ropes():
        return scaled, None
    until = plain.plain_context or plain.context
    if requested.original_context and not any(_is_scaled(rope) for rope in plain.ropes()):
        until = requested.original_context
    if until >= scaled.context:
        raise RequestError(
            f"the context would be {scaled.context:,} tokens with this scaling",
            f"it is {until:,} without",
            "choose a larger {rope_scale}, or {rope_always} to scale every sequence",
        )
    return _joined(plain, scaled, until)


def _of_file(
    read: Callable[[GGUFFile], ModelSpec], file: GGUFFile, arch: str
) -> tuple[ModelSpec, ModelSpec | None]:
    """Return the specs that the file implies, without a request."""
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
    requested: RopeScaling,
    context: int | None,
    plain: ModelSpec,
) -> ModelSpec | None:
    """Return the spec with the requested scaling, or None if the context needs none."""
    stated = next((rope for rope in read(file).ropes() if _is_scaled(rope)), None)
    type = requested.type or (stated.scaling if stated else "yarn")
    original = requested.original_context or (stated.original_context if stated else plain.context)
    factor = requested.factor or (stated.factor if stated and stated.scaling == type else None)
    if factor is None:
        if context is None:
            raise RequestError(
                "the length of the extended context is unknown",
                f"{file.path} states no scaling factor",
                "give a factor with {rope_scale}, or a number of tokens with {context}",
            )
        if context <= original and not requested.always:
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
    """Return both specs: `plain` up to `until` tokens, and `extended` for longer sequences."""
    if until >= extended.context:
        return plain, None
    return (
        replace(plain, context=extended.context, plain_context=until),
        replace(extended, plain_context=until),
    )


def _is_scaled(rope: Rope) -> bool:
    """Return whether frequencies differ from plain RoPE, here or in long contexts."""
    return rope.scaling != "none" or rope.long_divisors is not None


def _reach(factor: float, original: int) -> int:
    """Return the context length after scaling."""
    return min(MAX_CONTEXT, round(factor * original))


def _keys(
    arch: str, type: str, factor: float = 1.0, original: int | None = None
) -> dict[str, MetadataValue]:
    """Return the metadata of a scaling."""
    keys: dict[str, MetadataValue] = {
        f"{arch}.rope.scaling.type": type,
        f"{arch}.rope.scaling.factor": float(factor),
    }
    if original is not None:
        keys[f"{arch}.rope.scaling.original_context_length"] = original
    return keys
