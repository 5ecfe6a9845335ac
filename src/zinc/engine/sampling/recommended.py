"""Sampling settings that a model file recommends: `general.sampling.*`.

Converters copy them from the model's generation_config.json; llama.cpp reads the same keys.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from zinc.core.errors import RequestError
from zinc.engine.sampling.params import SamplingParams

_PARAMETERS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}

log = logging.getLogger("zinc.loading")


def recommended(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of SamplingParams from `metadata`; logs and skips values out of range."""
    found: dict[str, Any] = {}
    for key, name in _PARAMETERS.items():
        value = metadata.get(f"general.sampling.{key}")
        if value is None:
            continue
        if isinstance(value, float):
            value = float(f"{value:.7g}")  # 0.95 is 0.94999998807907 in float32
        one: dict[str, Any] = {name: value}
        try:
            SamplingParams(**one)
        except RequestError as error:
            log.warning("the file's general.sampling.%s is ignored: %s", key, error)
            continue
        found |= one
    return found
