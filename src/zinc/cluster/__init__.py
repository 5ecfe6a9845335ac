"""Replicas of the server on Ray Serve, behind one address.

    client → front (any node) → router → replica: the ASGI application of `zinc serve`

`front.py` forwards requests and repeats those of a lost replica, `routing.py` chooses a replica by
cached prefix and load, `replica.py` runs the server's application, and `app.py` joins them to a
Serve application. Only `app.py`, `router.py` and `control.py` import Ray, which needs the extra
`zinc-llm[ray]`. `batch` answers a dataset of Ray Data with engines on many machines.
"""

from zinc.cluster.batches import BatchResult, batch

__all__ = ["BatchResult", "batch"]
