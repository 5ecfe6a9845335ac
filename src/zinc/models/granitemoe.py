"""Granite 3 and 4 with experts: softmax over the chosen ones, and the scales of the dense models.

Some have a shared expert.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from
from zinc.models.parts.scales import scaled
from zinc.models.parts.spec import ModelSpec
from zinc.ops.moe import SOFTMAX_CHOSEN


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "granitemoe").require("logit_scale")
    base = scaled(file, dense_spec(file, "granitemoe", neox=False))
    experts = experts_from(file, "granitemoe", scoring=SOFTMAX_CHOSEN, renormalise=False)
    return replace(base, experts=experts)


build = decoder
