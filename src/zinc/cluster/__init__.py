"""Replicas of the server on Ray Serve, behind one address.

    client → front → router → replica: the ASGI application of `zinc serve`

`front.py` forwards requests and repeats those of a lost replica, `ingress.py` serves it over HTTP,
`routing.py` chooses a replica by cached prefix and load, and `replica.py` runs the server's
application. `front_actors.py` starts fronts as Ray actors, and `app.py` makes Serve applications.
Only these two, `handles.py`, `router.py` and `control.py` import Ray, which needs the extra
`zinc-llm[ray]`. `batch` answers a dataset of Ray Data with engines on many machines.
"""

from zinc.cluster.batches import BatchResult, batch

__all__ = ["BatchResult", "batch"]
