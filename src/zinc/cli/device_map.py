"""The part of `zinc plan` about a divided model: its devices, and the transfers between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zinc.backends.plans import AllReduce, Plan, Segment, SplitPlan, Transfer
from zinc.cli.text import size
from zinc.engine.cache_layout import context_bytes, state_bytes_per_sequence
from zinc.engine.step_cost import StepShape
from zinc.ops.values import Weight
from zinc.plan.layer_split import layer_range
from zinc.quant.blocks import row_bytes


def devices(plan: SplitPlan) -> list[int]:
    """Return the index of the device that runs each launch."""
    runs = [x for x in plan.schedule if isinstance(x, Segment)]
    return [run.device for run in runs for _ in range(run.first, run.last)]


def report(plan: SplitPlan, names: Sequence[str], shape: StepShape, context: int) -> dict[str, Any]:
    """Return devices, transfers and sums as JSON values."""
    transfers, sums = _exchanges(plan, names, shape)
    parts = [
        {
            "backend": name,
            "layers": layers_of(part),
            "launches": len(part.launches),
            "weights_bytes": sum(file_bytes(weight) for weight in part.weights),
            "kv_bytes": context_bytes(part.states, context, shape.kv_dtype, part.max_tokens),
            "state_bytes": state_bytes_per_sequence(part.states),
            "arena_bytes": part.arena_bytes,
        }
        for name, part in zip(names, plan.parts, strict=True)
    ]
    n_bytes = sum(each["bytes"] for each in (*transfers, *sums))
    return {
        "devices": parts,
        "transfers": transfers,
        "sums": sums,
        "transfer_bytes_per_token": n_bytes / (shape.tokens * shape.sequences),
    }


def _exchanges(
    plan: SplitPlan, names: Sequence[str], shape: StepShape
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the transfers and the sums of a step; `before` is the index of a launch.

    For a sum, each device that has a part sends it, and each device receives the total.
    """
    transfers: list[dict[str, Any]] = []
    sums: list[dict[str, Any]] = []
    at = 0
    for entry in plan.schedule:
        if isinstance(entry, AllReduce):
            total = entry.terms[0].total
            senders = [names[x.device] for x in entry.terms if x.part is not None]
            n_copies = len(senders) + len(entry.terms)
            n_bytes = n_copies * 4 * total.cols * shape.rows_of(total.dim)
            sums.append({"before": at, "senders": senders, "bytes": n_bytes})
        elif isinstance(entry, Transfer):
            transfers.append(
                {
                    "before": at,
                    "source": names[entry.source],
                    "target": names[entry.target],
                    "value": entry.sent.id,
                    "bytes": 4 * entry.sent.cols * shape.rows_of(entry.sent.dim),
                }
            )
        else:
            at += entry.last - entry.first
    return transfers, sums


def layers_of(part: Plan) -> list[int]:
    """Return the layers of which a device runs all or some launches."""
    labels = {launch.label for launch in part.launches}
    return sorted(int(x.removeprefix("blk.")) for x in labels if x.startswith("blk."))


def columns(plan: SplitPlan, found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return, for each launch, its backend and the bytes that cross before it."""
    received: dict[int, int] = {}
    for each in (*found["transfers"], *found["sums"]):
        received[each["before"]] = received.get(each["before"], 0) + each["bytes"]
    return [
        (found["devices"][device]["backend"], size(received[i]) if i in received else "")
        for i, device in enumerate(devices(plan))
    ]


def text(found: dict[str, Any]) -> str:
    """Return the devices and the transfers as text."""
    transfers = found["transfers"]
    lines = [
        f"on {part['backend']}: layers {layer_range(part['layers']) or 'none'}, "
        f"{part['launches']} launches, weights {size(part['weights_bytes'])}"
        f", KV cache {size(part['kv_bytes'])}, {_state(part)}arena {size(part['arena_bytes'])}"
        for part in found["devices"]
    ]
    sums = found["sums"]
    total = size(sum(each["bytes"] for each in (*transfers, *sums)))
    token = size(found["transfer_bytes_per_token"])
    values = f"{len(transfers)} values" + f" and {len(sums)} sums" * bool(sums)
    lines.append(f"between them: {values} per step, {total} ({token} per token)")
    return "\n".join(lines)


def _state(part: dict[str, Any]) -> str:
    """Return the recurrent state of a device as text; empty if it has none."""
    n_bytes = part["state_bytes"]
    return f"recurrent state {size(n_bytes)} a sequence, " if n_bytes else ""


def file_bytes(weight: Weight) -> int:
    """Return the bytes of a weight in the file."""
    rows = 1 if weight.is_vector else weight.planes * weight.rows
    return rows * row_bytes(weight.type, weight.cols)
