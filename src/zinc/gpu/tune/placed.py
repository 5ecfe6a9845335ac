"""A launch with random rows in its own arena, and the reference's result for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from zinc.backends.plans import Launch, Operand, Ref
from zinc.core.rounding import ceil_div
from zinc.gpu.bucket import Bucket
from zinc.gpu.host import Host
from zinc.gpu.memory import Bytes, aligned
from zinc.gpu.rows import decode_q8_rows, row_bytes
from zinc.gpu.tune.operands import (
    chains_products,
    encoded,
    follows_rows,
    random_routes,
    random_rows,
    repeated,
    sorted_slots,
)
from zinc.gpu.tune.weights import ROTATE_BYTES, LaunchWeights
from zinc.ops.registry import OPS
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RowFormat

MAX_ROUTES = 16  # choices of experts, so that a run reads many of them
NAN_BYTE = 0xFF  # fills rows before they are computed


class PlacedLaunch:
    """A launch whose rows lie in an arena.

    variants: the launch with each copy of its weights and each choice of experts. wanted: the
    values of its outputs, those of the first variant.
    """

    def __init__(
        self, host: Host, launch: Launch, bucket: Bucket, weights: LaunchWeights, step: Step
    ) -> None:
        self._host, self._bucket, self._weights = host, bucket, weights
        self._rng, self._size = np.random.default_rng(3), 0
        self._written: list[tuple[int, Bytes]] = []
        values: list[FloatArray | None] = list(weights.values)
        operands = list(enumerate(OPS[launch.kernel].signature.declared(launch.inputs)))
        placed: dict[int, Ref] = {}
        for i, (operand, x) in operands:
            if isinstance(x, Ref):
                follows = follows_rows(operand)
                placed[i], values[i] = self._random(x, weights.rows_of_operand(i), follows)
        self.outputs = tuple(self._place(y) for y in launch.outputs)
        routing = {x.name: i for i, (x, _) in operands if x.name in ("order", "starts", "routes")}
        choices = [dict(placed) for _ in range(_n_choices(launch, bucket))]
        for number, choice in enumerate(choices if routing else []):
            self._route(launch, routing, choice, values if number == 0 else [None] * len(values))
        self.variants = [
            self._variant(launch, i, choices[i % len(choices)])
            for i in range(max(weights.n_copies, len(choices)))
        ]
        self.arena = host.buffer(self._size)
        for offset, data in self._written:
            host.write(self.arena, offset, data)
        self._written.clear()
        outputs = OPS[launch.kernel].run(step, values, launch.attributes)
        if chains_products(launch):  # it has an output for each product, and all rows are distinct
            self.wanted = list(outputs)
        else:
            self.wanted = [repeated(y, *weights.rows(part)) for part, y in enumerate(outputs)]

    def clear(self) -> None:
        """Fill the outputs with NaN."""
        for ref in self.outputs:
            data = np.full(self._n_bytes(ref), NAN_BYTE, np.uint8)
            self._host.write(self.arena, ref.offset, data)

    def read(self) -> list[FloatArray]:
        """Wait for the submitted launches, and return the values of the outputs."""
        found = []
        for ref in self.outputs:
            data = self._host.read(self.arena, ref.offset, self._n_bytes(ref))
            data = data.reshape(-1, ref.stride)
            is_float = ref.format is RowFormat.F32
            found.append(
                data.view(np.float32) if is_float else decode_q8_rows(data, ref.cols, ref.runs)
            )
        return found

    def _n_bytes(self, ref: Ref) -> int:
        return self._bucket.rows(ref.dim) * ref.stride

    def _place(self, ref: Ref) -> Ref:
        """Return rows like `ref` in new memory of the arena, without gaps between them."""
        stride = ref.runs * row_bytes(ref.format, ref.cols // ref.runs)
        placed = replace(ref, offset=self._size, stride=stride, first=0)
        self._size += aligned(self._n_bytes(placed))
        return placed

    def _put(self, ref: Ref, values: FloatArray) -> Ref:
        """Return rows like `ref` in new memory, which will hold `values`."""
        placed = self._place(ref)
        self._written.append((placed.offset, encoded(values, placed).reshape(-1)))
        return placed

    def _random(self, ref: Ref, rows: tuple[int, int], follows: bool) -> tuple[Ref, FloatArray]:
        """Place random rows, and return what the reference reads of them.

        With `follows` their columns repeat as the rows of weights do.
        """
        n = self._bucket.rows(ref.dim)
        if not follows:
            values = random_rows(self._rng, n, ref.cols, ref.cols // ref.runs)
            return self._put(ref, values), values
        distinct = ref.cols * rows[1] // rows[0]
        values = self._rng.standard_normal((n, distinct)).astype(np.float32)
        return self._put(ref, repeated(values, *rows)), values

    def _route(
        self,
        launch: Launch,
        routing: dict[str, int],
        choice: dict[int, Ref],
        values: list[FloatArray | None],
    ) -> None:
        """Choose experts: place routes, order and starts, and add them to `choice` and `values`."""
        order, starts = (launch.inputs[routing[name]] for name in ("order", "starts"))
        assert isinstance(order, Ref)
        assert isinstance(starts, Ref)
        n_experts = starts.cols - 1
        routes = random_routes(self._rng, self._bucket.rows(order.dim), order.cols, n_experts)
        by_expert, first = sorted_slots(routes, n_experts)
        made = {"routes": routes, "order": by_expert, "starts": first}
        for name, i in routing.items():
            ref = launch.inputs[i]
            assert isinstance(ref, Ref)
            choice[i], values[i] = self._put(ref, made[name]), made[name]

    def _variant(self, launch: Launch, number: int, placed: dict[int, Ref]) -> Launch:
        inputs: list[Operand] = list(self._weights.inputs(number))
        for i, ref in placed.items():
            inputs[i] = ref
        return replace(launch, inputs=tuple(inputs), outputs=self.outputs)


def _n_choices(launch: Launch, bucket: Bucket) -> int:
    """Return how many choices of experts a run needs to read more bytes than the caches hold."""
    cost = launch.cost
    if not cost.expert_bytes:
        return 1
    chosen = min(bucket.rows(launch.dim) * cost.experts_per_row, cost.n_experts)
    return min(MAX_ROUTES, ceil_div(ROTATE_BYTES, chosen * cost.expert_bytes))
