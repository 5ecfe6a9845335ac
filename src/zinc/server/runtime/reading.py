"""Readings: texts of one request whose rows are read, without an answer.

All texts of a reading are submitted, delivered and counted together, because the work for each text
is a large part of the time of a short one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from zinc.engine.adapters import AdapterUse
from zinc.engine.engine import Engine
from zinc.engine.readout import NO_ANSWER, Pooled
from zinc.engine.request import Request
from zinc.engine.sequence import Sequence as EngineSequence
from zinc.engine.sequence import Timings
from zinc.server.errors import ApiError
from zinc.server.runtime.job import Client


class Reading:
    """Texts that are submitted together; `pools[i]` takes the rows of `texts[i]`, token ids."""

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        pools: Sequence[Pooled],
        priority: int,
        client: Client,
        adapters: AdapterUse | None,
    ) -> None:
        self.texts, self.client = texts, client
        self.submitted = time.perf_counter()
        self._pools, self._priority, self._adapters = pools, priority, adapters
        self._sequences: list[EngineSequence] = []
        self._result: Timings | ApiError | None = None
        self._arrival: asyncio.Future[None] | None = None

    # -- called in the event loop -----------------------------------------------------------------

    async def end(self) -> Timings:
        """Wait until all texts have been read; return their timings (`total`).

        Raises ApiError if a text fails.
        """
        if self._result is None:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        if isinstance(self._result, ApiError):
            raise self._result
        assert self._result is not None
        return self._result

    def deliver(self, result: Timings | ApiError) -> None:
        """Set the result. The runner calls this."""
        self._result = result
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def is_running(self, index: int) -> bool:
        """Return whether a text holds a part of the cache."""
        return index < len(self._sequences) and self._sequences[index].is_running

    # -- called in the engine's thread -------------------------------------------------------------

    def submit(self, engine: Engine) -> None:
        """Submit the texts. Raises the engine's error for a text; `cancel` ends the others."""
        client, priority, adapters = self.client, self._priority, self._adapters
        for ids, pool in zip(self.texts, self._pools, strict=True):
            request = Request(
                ids,
                NO_ANSWER,
                client=client.name,
                namespace=client.namespace,
                priority=priority,
                readout=pool,
                adapters=adapters,
            )
            self._sequences.append(engine.submit(request))

    @property
    def n_running(self) -> int:
        """The number of texts that hold a part of the cache."""
        return sum(1 for s in self._sequences if s.is_running)

    def result(self) -> Timings | Exception | None:
        """Return the timings once all texts have been read, or the error of one; else None."""
        error = next((s.error for s in self._sequences if s.error is not None), None)
        if error is not None:
            return error
        if any(s.finish_reason is None for s in self._sequences):
            return None
        clocks = [s.clock for s in self._sequences]
        return Timings(
            prompt_tokens=sum(s.n_prompt for s in self._sequences),
            cached_tokens=sum(s.n_cached for s in self._sequences),
            generated_tokens=0,
            prompt_seconds=sum(c.ended - (c.started or c.ended) for c in clocks),
            generate_seconds=0.0,
            first_token_seconds=min((c.ended - c.arrived for c in clocks), default=0.0),
        )

    def cancel(self, engine: Engine) -> None:
        """End the texts that have not ended."""
        for s in self._sequences:
            engine.cancel(s)


def total(parts: Sequence[Timings]) -> Timings:
    """Return the timings of several readings: sums, and the time until the first text was read."""
    return Timings(
        prompt_tokens=sum(t.prompt_tokens for t in parts),
        cached_tokens=sum(t.cached_tokens for t in parts),
        generated_tokens=0,
        prompt_seconds=sum(t.prompt_seconds for t in parts),
        generate_seconds=0.0,
        first_token_seconds=min((t.first_token_seconds for t in parts), default=0.0),
    )
