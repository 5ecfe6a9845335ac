"""Masks for answers that are held to a form, computed while the forward pass runs.

All constraints of a step are handed to one thread in one go, and come back as rows that the sampler
takes as they are: handing over a job each, and unpacking bits behind the forward pass, would take
longer than the masks themselves.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from queue import SimpleQueue
from typing import TypeAlias

from zinc.engine.constraint import Constraint
from zinc.engine.sampling.candidates import Floats
from zinc.engine.sampling.chain import mask_limits

_Found: TypeAlias = dict[int, Floats | Exception | None]
_Box: TypeAlias = SimpleQueue[_Found]
_Jobs: TypeAlias = SimpleQueue[tuple[Mapping[int, Constraint], _Box] | None]


class Masks:
    """The masks of one step, by id of the sequence; some may not be there yet."""

    def __init__(self, box: _Box | None = None) -> None:
        self._box = box
        self._found: _Found = {}

    def of(self, id: int) -> Floats | None:
        """What the sampler takes; None allows every token. Raises what the constraint raised."""
        self.wait()
        mask = self._found.get(id)
        if isinstance(mask, Exception):
            raise mask
        return mask

    def wait(self) -> None:
        """No constraint of the step is in use behind this."""
        if self._box is not None:
            self._found, self._box = self._box.get(), None


class MaskThread:
    """Computes masks of `n_vocab` tokens. The thread begins with the first, and ends with this."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._jobs: _Jobs = SimpleQueue()
        self._started = False

    def begin(self, constraints: Mapping[int, Constraint]) -> Masks:
        """Begins to compute masks; nobody else may use the constraints until they are there."""
        if not constraints:
            return Masks()
        if not self._started:
            self._started = True
            arguments = (self._jobs, self._n_vocab)
            threading.Thread(target=_work, args=arguments, name="zinc-mask", daemon=True).start()
            weakref.finalize(self, self._jobs.put, None)
        box: _Box = SimpleQueue()
        self._jobs.put((constraints, box))
        return Masks(box)


def _work(jobs: _Jobs, n_vocab: int) -> None:
    while (job := jobs.get()) is not None:
        constraints, box = job
        found: _Found = {}
        for id, constraint in constraints.items():
            try:
                mask = constraint.mask()
                found[id] = None if mask is None else mask_limits(mask, n_vocab)
            except Exception as error:
                found[id] = error
        box.put(found)
