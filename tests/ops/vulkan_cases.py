"""Cases of ops, and fixtures, that Vulkan runs by default.

Mesa's driver for CPUs takes a second or more to compile a kernel. So by default, each kernel and
each value of a macro that selects code runs with some sizes, as test_vulkan_cases.py checks. Cases
and models with other sizes, or with other combinations of the same macros, run with --every.
"""

from __future__ import annotations

from zinc.ops.cases import Case
from zinc.ops.registry import Op
from zinc.quant.blocks import BLOCKS

# All kernels decode a format with the same snippet, so `embed` runs with every format, products
# with one format of each kind, and fused products with some of these.
KINDS = {
    "linear": ("F16", "Q8_0", "Q4_1", "Q4_K", "IQ2_S"),
    "linear_glu": ("F16", "Q4_1"),
    "head_linear": ("F16", "Q4_K"),
    "moe_glu": ("F16", "Q4_K"),
    "moe_down": ("F16", "Q6_K"),
}
# Cases that run the code of others with other sizes: other heads, fewer tokens, other ranks. A name
# may begin with that of the op.
REPEATED = {
    "deep-group",
    "deep-heads",
    "deep-one",
    "deep-one-plain",
    "deep-one-rope-norm",
    "drafts",
    "attention-few",
    "few-plain",
    "selected-heads",
    "selected-deep",
    "selected-wide",
    "selected-wide-deep",
    "4x4x32",
    "4x2x64",
    "4x2x64-neox",
    "6x2x48",
    "6x2x48-neox",
    "8x1x16",
    "8x1x16-neox",
    "chunked-deep",
    "chunked-one",
    "latent-few",
    "latent-many",
    "latent-one",
    "latent-wave",
    "wide-many",
    "many",
    "select_keys-deep",
    "140000",
    "2x16",
    "4-softplus",
    "4-40x96-17-1",
    "4-40x96-17-3",
    "21-17x64-66-1",
    "21-17x64-66-3",
    "64-130x256-46-1",
    "64-130x256-46-3",
    "F16-4x96x32",
    "Q4_K-3x32x256",
    "F16-29",
    "ungated-29",
    "Q4_K-29",
    "Q6_K-29",
    "mixed-21",
    "channels-wide",
    "gate-4",
    "gate-64-softplus",
    "48x4",
    "80x2",
    "rms_norm-row256",
    "layer_norm-row256",
    "3x256",
    "statistical_top-row48",
    "2048",
    "group_experts-1x16",
    "equal",
    "ragged",
    "uneven",
    "80x4",
}
# Families of several kinds of layers. Tests of the engine run most of them too, with the same
# kernels; cases of ops run those of sinks and of other recurrent layers.
MODELS = (
    *("qwen3", "gemma3"),  # whole contexts and windows
    *("deepseek2", "qwen3moe"),  # latent attention, experts
    *("qwen35", "mamba2"),  # recurrent layers
)


def is_repeated(op: Op, case: Case) -> bool:
    """Return whether other cases that run by default run the code of `case`."""
    format = case.name.split("-")[0]
    known = format in {block.name for block in BLOCKS.values()}
    is_named = not REPEATED.isdisjoint((case.name, f"{op.name}-{case.name}"))
    return is_named or (known and format not in KINDS.get(op.name, (format,)))
