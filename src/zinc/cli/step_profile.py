"""The time of a step, launch by launch, summed by kernel and by phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zinc.core.dataclass import dataclass

if TYPE_CHECKING:
    from zinc.backends.capabilities import Roofline
    from zinc.backends.plans import Launch
    from zinc.engine.step_cost import StepShape


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of each launch in a step, and of the whole step when launches are not timed."""

    shape: StepShape
    launches: Sequence[Launch]
    seconds: Sequence[float]
    step_s: float

    @property
    def percent_of_step(self) -> float:
        """Time of all launches as a percentage of the time of a whole step."""
        return 100 * sum(self.seconds) / self.step_s

    def by_kernel(self, limits: Roofline | None) -> list[dict[str, Any]]:
        """Return the launches grouped by kernel, as JSON values."""
        return self._by("kernel", lambda launch: launch.kernel, limits)

    def by_phase(self, limits: Roofline | None) -> list[dict[str, Any]]:
        """Return the launches grouped by phase, as JSON values."""
        return self._by("phase", lambda launch: str(launch.phase), limits)

    def _by(
        self, title: str, key: Callable[[Launch], str], limits: Roofline | None
    ) -> list[dict[str, Any]]:
        """Return sums over launches with the same `key`, the costliest first.

        Percentages are of the total of all launches.
        """
        kinds: dict[str, dict[str, Any]] = {}
        for launch, s in zip(self.launches, self.seconds, strict=True):
            if not self.shape.runs(launch):
                continue
            name = key(launch)
            kind = kinds.setdefault(name, {title: name, "launches": 0, "seconds": 0.0, "bytes": 0})
            kind["launches"] += 1
            kind["seconds"] += s
            kind["bytes"] += self.shape.bytes(launch)
        total = sum(self.seconds) or 1.0
        for kind in kinds.values():
            kind["percent"] = 100 * kind["seconds"] / total
            reads = limits.bytes_per_s * kind["seconds"] if limits else 0.0
            kind["percent_of_bandwidth"] = 100 * kind["bytes"] / reads if reads else None
        return sorted(kinds.values(), key=lambda kind: -kind["seconds"])
