"""Lowering of exchanges of rows between GPUs (zinc.gpu.peers)."""

from __future__ import annotations

from zinc.backends.cuda.lower.registry import lowers
from zinc.backends.plans import EXCHANGE, Launch, Ref
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import EXCHANGE_BLOCKS, ExchangeArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.operands import dim_code, ref_or_null

THREADS = 256
EACH = 2  # items of a thread, as long as there are not too many blocks


@lowers(EXCHANGE)
def exchange(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    attrs = {name: int(value) for name, value in launch.attrs}
    if attrs["sampling"] and not bucket.samples:
        return []
    cols, width = attrs["cols"], 4 if attrs["vectors"] else 1
    items = bucket.rows(launch.dim) * cols // width
    defines = (
        ("EXCHANGE_BLOCKS", EXCHANGE_BLOCKS),
        ("THREADS", THREADS),
        ("VECTORS", attrs["vectors"]),
    )
    (sent,) = launch.inputs
    received: Ref | None = launch.outputs[0] if launch.outputs else None
    sent_at, sent_stride = ref_or_null(at, sent)
    received_at, received_stride = ref_or_null(at, received)
    arguments = ExchangeArguments(
        step=at.step,
        peers=attrs["peers"],
        sent=sent_at,
        received=received_at,
        sent_stride=sent_stride,
        received_stride=received_stride,
        cols=cols,
        dim=dim_code(launch.dim, bucket),
        participants=attrs["participants"],
        senders=attrs["senders"],
        receivers=attrs["receivers"],
        mail_at=attrs["mail_at"],
        mail_bytes=attrs["mail_bytes"],
    )
    blocks = min(EXCHANGE_BLOCKS, ceil_div(items, EACH * THREADS))
    return [Dispatch(KernelVariant("exchange", defines), arguments, (blocks, 1, 1))]
