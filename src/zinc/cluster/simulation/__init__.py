"""A discrete-event simulator of a cluster: `zinc cluster simulate`.

    workload.py   requests: generated, or read from a trace
    rates.py      the time of a step, from results of `zinc bench`
    replica.py    a replica: queue, continuous batching, prefix cache
    events.py     the cluster: arrivals, routing, the end of steps
    result.py     latencies, hit rate and cost of a run

Routing and scheduling are not modelled: the simulator calls the functions that clusters and engines
call. It models the time of steps, and the prefix cache as a set of blocks of text.
"""
