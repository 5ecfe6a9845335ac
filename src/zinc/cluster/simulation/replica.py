"""A simulated replica: the engine's scheduler over simulated time and memory.

A block of its prefix cache is a digest of the text of about 16 tokens. These blocks are smaller
than the engine's, because the engine also reuses the beginning of a block. Blocks are shared, kept
after an answer and evicted as in the engine: the least recently used first, and the end of a prompt
before its beginning. Preempted sequences run again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field

from zinc.cluster.prompt_blocks import split
from zinc.cluster.routing import Sketch
from zinc.cluster.simulation.rates import StepTimes
from zinc.cluster.simulation.workload import Request
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.engine.engine import PROMPT_TOKENS_BESIDE_STREAMS
from zinc.engine.scheduler import MAX_SEQUENCES, Budget, Demand, schedule


@dataclass(slots=True, eq=False)
class Job:
    """A request at a replica. number: order of arrival there.

    n_run: tokens in the cache. shared: blocks that it shares with the prefix cache. first_s,
    last_s: times of the first and the last token so far. gaps: times between tokens, as (seconds,
    count). n_cached: tokens of the prompt that were cached when it began.
    """

    index: int
    request: Request
    arrived_s: float
    number: int = 0
    prompt: Sequence[bytes] = ()
    is_running: bool = False
    n_run: int = 0
    n_generated: int = 0
    n_cached: int | None = None
    shared: Sequence[bytes] = ()
    first_s: float = math.nan
    last_s: float = math.nan
    gaps: list[tuple[float, int]] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        return self.request.prompt_tokens + self.n_generated

    @property
    def pending(self) -> int:
        return self.n_tokens - self.n_run


@dataclass(slots=True)
class _Run:
    """Steps that run: `n_steps` equal ones, with the same tokens of each job."""

    begun_s: float
    n_steps: int
    tokens: dict[int, int]
    step_s: float
    growth_s: float  # by which each step is longer than the one before

    def seconds(self, n_steps: int) -> float:
        return n_steps * self.step_s + self.growth_s * n_steps * (n_steps - 1) / 2

    @property
    def ends_s(self) -> float:
        return self.begun_s + self.seconds(self.n_steps)


class SimulatedReplica:
    """A replica with `n_blocks` cache blocks of `block_tokens`.

    sketch: what it reports to routers. run: the steps that run now. busy_s: time in which it ran.
    """

    def __init__(
        self, name: str, times: StepTimes, n_blocks: int, block_tokens: int, sketch: Sketch
    ) -> None:
        self.name, self.sketch = name, sketch
        self.run: _Run | None = None
        self.busy_s = 0.0
        self._times = times
        self._n_blocks, self._block_tokens = n_blocks, block_tokens
        self._jobs: dict[int, Job] = {}  # in order of arrival
        self._cache = Sketch(n_blocks)
        self._shared: Counter[bytes] = Counter()  # blocks of the cache, by the jobs that hold them
        self._n_arrived = 0

    def submit(self, job: Job) -> None:
        """Queue a job."""
        job.number, job.prompt = self._n_arrived, split(job.request.cached)
        self._n_arrived += 1
        self._jobs[job.number] = job

    def interrupt(self, now_s: float) -> None:
        """End the steps that run after the one that runs now."""
        run = self.run
        if run is not None and run.n_steps > 1:
            mean_s = run.seconds(run.n_steps) / run.n_steps
            run.n_steps = min(run.n_steps, max(1, math.ceil((now_s - run.begun_s) / mean_s)))

    def start(self, now_s: float) -> bool:
        """Begin steps, if any job can run; return whether one can."""
        found = schedule(self._demands(), self._budget())
        for number in found.preempted:
            self._put_back(self._jobs[number])
        tokens: dict[int, int] = {}
        for number, count in found.tokens.items():
            job = self._jobs[number]
            if not job.is_running:
                self._attach(job)
            tokens[number] = min(count, job.pending)
        if not tokens:
            return False
        running = [(self._jobs[number], count) for number, count in tokens.items()]
        streams = [job for job, _ in running if job.pending == 1]
        step_s = self._times.step_s(
            sum(tokens.values()),
            keys=sum(job.n_tokens for job in streams),
            pairs=sum(n * (j.n_run + n // 2) for j, n in running if j.pending > 1),
        )
        n_steps = 1
        if len(streams) == len(running):
            # Nothing changes until a job ends, memory is short or a job arrives.
            left = min(job.request.answer_tokens - job.n_generated for job in streams)
            room = self._budget().blocks[0] // len(streams) * self._block_tokens
            n_steps = max(1, min(left, room))
        growth_s = self._times.key_s * len(streams)
        self.run = _Run(now_s, n_steps, tokens, step_s, growth_s)
        return True

    def finish(self) -> list[Job]:
        """End the steps that run; return the jobs whose answer has ended."""
        run = self.run
        assert run is not None
        self.run = None
        self.busy_s += run.ends_s - run.begun_s
        ended: list[Job] = []
        for number, count in run.tokens.items():
            job = self._jobs[number]
            is_complete = count == job.pending
            was_run, job.n_run = job.n_run, job.n_run + count * run.n_steps
            if was_run < job.request.prompt_tokens:
                self._commit(job, was_run)
            if not is_complete:
                continue
            job.n_generated += run.n_steps
            n_gaps = run.n_steps
            if math.isnan(job.first_s):
                job.first_s = job.last_s = run.begun_s + run.seconds(1)
                n_gaps -= 1
            if n_gaps:
                job.gaps.append(((run.ends_s - job.last_s) / n_gaps, n_gaps))
            job.last_s = run.ends_s
            if job.n_generated >= job.request.answer_tokens:
                del self._jobs[number]
                self._release(job, split(job.request.kept))
                ended.append(job)
        return ended

    # -- scheduling -----------------------------------------------------------------------------

    def _budget(self) -> Budget:
        free = self._n_blocks - self._n_own_blocks() - len(self._shared)
        n_running = sum(job.is_running for job in self._jobs.values())
        return Budget(
            tokens=self._times.step_tokens,
            prompt_tokens=PROMPT_TOKENS_BESIDE_STREAMS,
            sequences=MAX_SEQUENCES,
            blocks=(max(0, free),),
            slots=MAX_SEQUENCES - n_running,
            block_tokens=self._block_tokens,
        )

    def _demands(self) -> Iterable[Demand]:
        """Yield the demands of jobs, as the engine's `CacheManager.demand` does.

        Once the waiting jobs fill a step, further ones are skipped, because they cannot run in it.
        """
        leaders = [job for job in self._jobs.values() if job.is_running and job.pending > 1]
        left = self._times.step_tokens
        for job in self._jobs.values():
            if job.is_running:
                n_run, n_table, n_pinned = job.n_run, self._n_table(job), 0
            else:
                if left <= 0:
                    break
                n_table = self._cache.n_matching(job.prompt)
                if any(_n_common(job.prompt, other.prompt) > n_table for other in leaders):
                    continue  # the engine waits for a prompt with the same beginning
                leaders.append(job)
                n_run = self._cached_tokens(job, n_table)
                n_pinned = sum(block not in self._shared for block in job.prompt[:n_table])
                left -= job.n_tokens - n_run
            yield Demand(
                id=job.number,
                pending=job.n_tokens - n_run,
                runnable=min(job.n_tokens - n_run, self._times.step_tokens),
                n_run=n_run,
                n_table=n_table,
                missing_blocks=(max(0, self._blocks(job.n_tokens) - n_table),),
                admitted=job.is_running,
                freeable_blocks=(n_table - len(job.shared) if job.is_running else 0,),
                pinned_blocks=(n_pinned,),
            )

    # -- memory ---------------------------------------------------------------------------------

    def _blocks(self, n_tokens: int) -> int:
        return ceil_div(n_tokens, self._block_tokens)

    def _n_table(self, job: Job) -> int:
        """Return how many blocks a running job holds, with shared ones."""
        return max(len(job.shared), self._blocks(job.n_run))

    def _n_own_blocks(self) -> int:
        """Return how many blocks running jobs hold that are not in the prefix cache."""
        running = (job for job in self._jobs.values() if job.is_running)
        return sum(self._n_table(job) - len(job.shared) for job in running)

    def _cached_tokens(self, job: Job, n_blocks: int) -> int:
        return min(int(n_blocks * job.request.block_tokens), job.request.prompt_tokens - 1)

    def _attach(self, job: Job) -> None:
        """Give a waiting job its cached prefix."""
        n_blocks = self._cache.n_matching(job.prompt)
        job.is_running = True
        job.n_run = self._cached_tokens(job, n_blocks)
        if job.n_cached is None:
            job.n_cached = job.n_run
        self._share(job, job.prompt[:n_blocks])

    def _commit(self, job: Job, was_run: int) -> None:
        """Keep the part of a prompt that has run in the prefix cache."""
        per_block = job.request.block_tokens
        n_blocks = max(len(job.shared), min(len(job.prompt), int(job.n_run / per_block)))
        self._share(job, job.prompt[:n_blocks], since=int(was_run / per_block))

    def _share(self, job: Job, blocks: Sequence[bytes], since: int = 0) -> None:
        """Let a job share `blocks` of the prefix cache; mark blocks[since:] as used now."""
        self._shared.update(blocks[len(job.shared) :])
        job.shared = blocks
        self._keep(blocks[since:])

    def _keep(self, blocks: Sequence[bytes]) -> None:
        self._cache.capacity = self._n_blocks - self._n_own_blocks()
        self._cache.add(blocks)

    def _put_back(self, job: Job) -> None:
        """Return a preempted job to the queue."""
        self._release(job, job.prompt[: len(job.shared)])
        job.n_run = 0

    def _release(self, job: Job, kept: Sequence[bytes]) -> None:
        """Take the blocks of a job, and keep `kept` in the prefix cache."""
        for block in job.shared:
            self._shared[block] -= 1
            if not self._shared[block]:
                del self._shared[block]
        job.is_running, job.shared = False, ()
        self._keep(kept)


def _n_common(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """Return the number of equal blocks at the start of two prompts."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
