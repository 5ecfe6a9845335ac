"""Numbers in the metadata of a model, with their bounds checked."""

from __future__ import annotations

from typing import Any

from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.models.parts.errors import damaged, missing_key

# Larger than any published model: a size beyond is a sign of a damaged file.
MAX_LAYERS, MAX_HEADS, MAX_WIDTH, MAX_VOCAB = 1024, 1024, 1 << 20, 1 << 22
MAX_CONTEXT = 1 << 30
MAX_TAPS = 16  # of a convolution along the sequence


class Metadata:
    """Checked access to the keys of `file` that start with `{arch}.`."""

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file, self.arch = file, arch

    def size(self, key: str, limit: int, default: int | None = None) -> int:
        """Return a positive integer of at most `limit`; raises ModelError otherwise."""
        name = f"{self.arch}.{key}"
        value = self.file.int(name) if default is None else self.file.int(name, default=default)
        if not 0 < value <= limit:
            raise damaged(self.file, f"{name} is {value}, and it must lie between 1 and {limit}")
        return value

    def require(self, *keys: str) -> None:
        """Raise ModelError unless the file has `keys`, whose defaults suit other families only."""
        for key in keys:
            if f"{self.arch}.{key}" not in self.file.metadata:
                raise missing_key(self.file, f"{self.arch}.{key}")

    def taps(self, key: str) -> int:
        """Return the number of tokens that a convolution reads, 2 to MAX_TAPS."""
        taps = self.size(key, MAX_TAPS)
        if taps < 2:
            raise damaged(self.file, f"{self.arch}.{key} is {taps}, and a convolution needs 2")
        return taps

    def layers(self) -> tuple[int, int]:
        """Return the number of layers, and of NextN (MTP) blocks after them.

        `block_count` counts both. NextN blocks predict further tokens for speculation.
        """
        n_blocks = self.size("block_count", MAX_LAYERS)
        n_nextn = self.optional_size("nextn_predict_layers", MAX_LAYERS)
        if n_nextn >= n_blocks:
            raise damaged(
                self.file,
                f"{self.arch}.nextn_predict_layers is {n_nextn} of {n_blocks} blocks in all",
            )
        return n_blocks - n_nextn, n_nextn

    def optional_size(self, key: str, limit: int) -> int:
        """Return a size, or 0 if the key is missing or 0: the feature is absent."""
        if self.file.int(f"{self.arch}.{key}", default=0) == 0:
            return 0
        return self.size(key, limit)

    def dense_width(self) -> int:
        """Return the MLP width of dense layers, or 0 if a model with experts does not state it.

        If layers without an MLP have the width 0, it is that of the others.
        """
        if self._is_array("feed_forward_length"):
            return max(self.mlp_widths(self.layers()[0]))
        if self.optional_size("expert_count", MAX_WIDTH):
            return self.optional_size("feed_forward_length", MAX_WIDTH)
        return self.size("feed_forward_length", MAX_WIDTH)

    def optional_positive(self, key: str) -> float:
        """Return a positive number, or 0 if the key is missing or 0: the feature is absent."""
        if self.file.float(f"{self.arch}.{key}", default=0.0) == 0:
            return 0.0
        return self.positive(key)

    def sizes(self, key: str, limit: int, n_layers: int, default: int | None = None) -> list[int]:
        """Return a size for each layer; the file has an array or one integer for all layers."""
        name = f"{self.arch}.{key}"
        if not self._is_array(key):
            return [self.size(key, limit, default)] * n_layers
        values = self.layer_values(key, n_layers)
        for i, value in enumerate(values):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= limit:
                raise damaged(
                    self.file,
                    f"{name} is {value!r} for layer {i}, and it must lie between 1 and {limit}",
                )
        return values

    def kv_heads(self, n_heads: int, n_layers: int, *, hybrid: bool) -> list[int]:
        """Return the KV heads of each layer, one for each of `n_heads` query heads by default.

        In a hybrid, some layers may have 0: they are recurrent.
        """
        key = "attention.head_count_kv"
        if not hybrid or not self._is_array(key):
            return self.sizes(key, MAX_HEADS, n_layers, default=n_heads)
        counts = self.layer_values(key, n_layers)
        if not all(isinstance(n, int) and 0 <= n <= MAX_HEADS for n in counts) or not any(counts):
            raise damaged(
                self.file,
                f"{self.arch}.{key} counts {counts} heads for the layers, "
                f"and each must have 0 to {MAX_HEADS}, at least one of them 1",
            )
        return counts

    def recurrent_layers(self, n_layers: int, *, interval: int = 1) -> tuple[bool, ...]:
        """Return for each layer of a hybrid whether it is recurrent.

        A file lists the layers, or gives recurrent layers no KV heads. Otherwise all layers are
        recurrent except the last of each `full_attention_interval`, whose default is `interval`.
        """
        key = "attention.recurrent_layers"
        if self._is_array(key):
            return tuple(bool(x) for x in self.layer_values(key, n_layers))
        if self._is_array("attention.head_count_kv"):
            counts = self.layer_values("attention.head_count_kv", n_layers)
            if 0 in counts:
                return tuple(n == 0 for n in counts)
        interval = self.size("full_attention_interval", MAX_LAYERS, default=interval)
        return tuple((i + 1) % interval != 0 for i in range(n_layers))

    def mlp_widths(self, n_layers: int) -> list[int]:
        """Return the MLP width of each layer, 0 for layers without an MLP."""
        key = "feed_forward_length"
        widths = self.layer_values(key, n_layers)
        kinds = {n for n in widths if n != 0}
        if not all(isinstance(n, int) and 0 < n <= MAX_WIDTH for n in kinds) or len(kinds) != 1:
            raise damaged(
                self.file,
                f"the layers with an MLP in {self.arch}.{key} need one width, not {kinds}",
            )
        return widths

    def _is_array(self, key: str) -> bool:
        return isinstance(self.file.metadata.get(f"{self.arch}.{key}"), GGUFArray)

    def layer_values(self, key: str, n_layers: int) -> list[Any]:
        """Return the first `n_layers` elements of an array; raises ModelError if it is shorter."""
        array = self.file.array(f"{self.arch}.{key}")
        if len(array) < n_layers:
            raise damaged(
                self.file, f"{self.arch}.{key} has {len(array)} elements for {n_layers} layers"
            )
        return array[:n_layers]

    def limits(self, key: str) -> tuple[float, ...]:
        """Return the limit of activations in each block, 0 for none; () if none has one.

        The result includes NextN blocks. A block that the file does not list has no limit.
        """
        n_layers, n_nextn = self.layers()
        if not self._is_array(key):
            limit = self.optional_positive(key)
            return (limit,) * (n_layers + n_nextn) if limit else ()
        of_nextn = self.file.array(f"{self.arch}.{key}")[n_layers : n_layers + n_nextn]
        limits = [*self.layer_values(key, n_layers), *of_nextn]
        limits += [0.0] * (n_layers + n_nextn - len(limits))
        if not all(isinstance(x, float) and 0 <= x < float("inf") for x in limits):
            raise damaged(
                self.file,
                f"{self.arch}.{key} is {limits}, and limits must be numbers of at least 0",
            )
        return tuple(limits) if any(limits) else ()

    def symmetric_window(self) -> int:
        """Return the window of an encoder: a token sees others less than this far away.

        The file states the sum of both sides. 0 means that a token sees all others.
        """
        both = self.optional_size("attention.sliding_window", MAX_CONTEXT)
        return both // 2 + 1 if both else 0

    def sliding_layers(self, n_layers: int, period: int, *, full_first: bool = False) -> list[bool]:
        """Return for each layer whether it attends to a sliding window only.

        Unless the file lists these layers, they are all layers except the last of each `period`
        (with `full_first`, the first of each).
        """
        key = "attention.sliding_window_pattern"
        if self._is_array(key):
            pattern = self.layer_values(key, n_layers)
            if not all(isinstance(slides, int) for slides in pattern):
                raise damaged(self.file, f"{self.arch}.{key} does not say yes or no for each layer")
            return [bool(slides) for slides in pattern]
        period = self.size(key, MAX_LAYERS, default=period)
        at = 0 if full_first else 1
        return [(i + at) % period != 0 for i in range(n_layers)]

    def check_sharing(self, n_heads: int, n_kv_heads: int) -> None:
        """Raise ModelError unless query heads share KV heads evenly."""
        if n_heads % n_kv_heads:
            raise damaged(
                self.file, f"{n_heads} query heads cannot share {n_kv_heads} KV heads evenly"
            )

    def rms_eps(self) -> float:
        """Return the eps of RMS norms, which some files state as that of layer norms."""
        keys = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
        found = [key for key in keys if f"{self.arch}.{key}" in self.file.metadata]
        return self.positive(found[0] if found else keys[0])

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0; raises ModelError otherwise."""
        name = f"{self.arch}.{key}"
        value = self.file.float(name) if default is None else self.file.float(name, default=default)
        if not 0 < value < float("inf"):
            raise damaged(self.file, f"{name} is {value}, and it must be a positive number")
        return value
