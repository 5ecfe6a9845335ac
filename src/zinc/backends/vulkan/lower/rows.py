"""Ops that move or add float32 rows, one thread an element."""

from __future__ import annotations

import struct

from zinc.backends.api import Launch, Ref
from zinc.backends.vulkan.dispatch import Addresses, Bucket, Dispatch, Shader, lowers
from zinc.ops.graph import Dim

SELECT, ADD = 1, 2
DIMS = {Dim.TOKENS: 0, Dim.OUTPUTS: 1, Dim.SEQUENCES: 2, Dim.CONSTANT: 3}
WORKGROUP = 64


def _dispatch(
    kind: int, launch: Launch, at: Addresses, bucket: Bucket, a: int, b: int, strides: list[int]
) -> list[Dispatch]:
    (out,) = launch.outputs
    scale = float(launch.attributes.get("scale", 1.0))
    push = struct.pack(
        "<4Q5If", at.step, a, b, at.ref(out), out.cols, DIMS[out.dim], *strides, scale
    )
    groups = (-(-out.cols // WORKGROUP), bucket.rows(out.dim), 1)
    return [Dispatch(Shader("rows", (("KIND", kind),)), push, groups)]


@lowers("select_rows")
def select_rows(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    (x,), (out,) = launch.inputs, launch.outputs
    assert isinstance(x, Ref)
    strides = [x.stride // 4, 0, out.stride // 4]
    return _dispatch(SELECT, launch, at, bucket, at.ref(x), 0, strides)


@lowers("add")
def add(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    (a, b), (out,) = launch.inputs, launch.outputs
    assert isinstance(a, Ref)
    assert isinstance(b, Ref)
    strides = [a.stride // 4, b.stride // 4, out.stride // 4]
    return _dispatch(ADD, launch, at, bucket, at.ref(a), at.ref(b), strides)
