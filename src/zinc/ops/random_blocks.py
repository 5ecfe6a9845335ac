"""Random blocks of the types that zinc cannot encode, for generated tests.

The bits of quants are random. Scales are chosen, because random bits would make them NaN, infinite
or many orders of magnitude apart.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes
from zinc.quant.decode import decode


def random_blocks(
    rng: np.random.Generator, type: GGMLType, shape: tuple[int, ...], rms: float = 1.0
) -> npt.NDArray[np.uint8]:
    """Return random blocks of a tensor of `shape`, whose values have about the size `rms`.

    Raises ModelError if the last dimension is not a whole number of blocks.
    """
    layout = BLOCKS[type]
    n_bytes = int(np.prod(shape[:-1])) * row_bytes(type, shape[-1])
    data = rng.integers(0, 256, n_bytes, np.uint8)
    blocks = data.view(layout.dtype)
    _set_scales(type, blocks, np.ones(len(blocks)))
    scale = rms / np.sqrt(np.mean(np.square(decode(data, type, shape))))
    _set_scales(type, blocks, rng.uniform(0.7, 1.3, len(blocks)) * scale)
    return data


def _set_scales(
    type: GGMLType, blocks: npt.NDArray[np.void], scales: npt.NDArray[np.float64]
) -> None:
    if type is GGMLType.NVFP4:  # unsigned E4M3: four groups per block, within a factor of two
        codes = np.clip(np.round(8 * (np.log2(scales) + 7)), 8, 112).astype(np.uint8)
        blocks["d"] = codes[:, None] + blocks["d"] % 8
    elif type is GGMLType.IQ1_M:  # a float16 in the top nibbles of four words
        bits = scales.astype(np.float16).view(np.uint16)
        nibbles = bits[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 0xF
        blocks["scales"] = blocks["scales"] & 0xFFF | nibbles << 12
    else:
        blocks["d"] = scales
