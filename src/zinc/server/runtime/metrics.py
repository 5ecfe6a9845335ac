"""Counters, gauges and histograms in Prometheus' text format (version 0.0.4).

All of them are updated in the event loop, so they need no lock.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from zinc.engine.load.memory import MemoryReport
from zinc.engine.sequence import Timings
from zinc.server.runtime.runner import Observer, RunnerStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)

Labels = tuple[str, ...]


class Family:
    """A counter (`add`) or gauge (`set`), with one value for each combination of labels."""

    def __init__(self, kind: str, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.kind, self.name, self.help = kind, name, help
        self.labels = tuple(labels)
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1, *labels: str) -> None:
        """Add `amount` to the value with these labels."""
        self._values[labels] = self._values.get(labels, 0) + amount

    def set(self, value: float, *labels: str) -> None:
        """Set the value with these labels."""
        self._values[labels] = value

    def value(self, *labels: str) -> float:
        """Return the value with these labels, by default 0."""
        return self._values.get(labels, 0)

    def known(self) -> dict[Labels, float]:
        """Return the values by label, in the order of their first use."""
        return dict(self._values)

    def clear(self) -> None:
        """Remove all values."""
        self._values.clear()

    def lines(self) -> Iterable[str]:
        """Yield the lines of the text format."""
        for labels, value in self._values.items():
            yield f"{self.name}{_braces(self.labels, labels)} {_number(value)}"


class Histogram(Family):
    """A metric that counts observations in buckets, for each combination of labels."""

    def __init__(
        self, name: str, help: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        super().__init__("histogram", name, help, labels)
        self._buckets = tuple(buckets)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count an observation with these labels."""
        counts = self._counts.setdefault(labels, [0] * (len(self._buckets) + 1))
        counts[bisect_left(self._buckets, value)] += 1
        self._sums[labels] = self._sums.get(labels, 0) + value

    def count(self, *labels: str) -> int:
        """Return the number of observations with these labels."""
        return sum(self._counts.get(labels, ()))

    def lines(self) -> Iterable[str]:
        names = (*self.labels, "le")
        for labels, counts in self._counts.items():
            total = 0
            for bound, count in zip((*self._buckets, None), counts, strict=True):
                total += count
                le = "+Inf" if bound is None else f"{bound:g}"
                yield f"{self.name}_bucket{_braces(names, (*labels, le))} {total}"
            plain = _braces(self.labels, labels)
            yield f"{self.name}_sum{plain} {_number(self._sums[labels])}"
            yield f"{self.name}_count{plain} {total}"


class ServerMetrics:
    """The metrics of a server. Counters are updated by requests, gauges when they are read."""

    def __init__(self) -> None:
        self.started_unix_s = int(time.time())

        def counter(name: str, help: str, *labels: str) -> Family:
            return Family("counter", f"zinc_{name}", help, labels)

        def gauge(name: str, help: str, *labels: str) -> Family:
            return Family("gauge", f"zinc_{name}", help, labels)

        self.requests = counter(
            "http_requests_total", "Answered requests.", "method", "path", "status"
        )
        self.answers = counter("answers_total", "Finished answers, by reason.", "model", "reason")
        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens.", "model")
        self.cached_tokens = counter(
            "prompt_cached_tokens_total", "Prompt tokens found in the prefix cache.", "model"
        )
        self.prompt_seconds = counter("prompt_seconds_total", "Seconds of prefill.", "model")
        self.generated_tokens = counter("generated_tokens_total", "Generated tokens.", "model")
        self.generate_seconds = counter("generate_seconds_total", "Seconds of decode.", "model")
        self.drafted_tokens = counter(
            "drafted_tokens_total", "Tokens that speculation proposed.", "model"
        )
        self.accepted_draft_tokens = counter(
            "accepted_draft_tokens_total", "Proposed tokens that are in the answers.", "model"
        )
        self.first_token = Histogram(
            "zinc_time_to_first_token_seconds",
            "Time from submission to the first token of an answer.",
            _SECONDS,
            ["model"],
        )
        self.between_tokens = Histogram(
            "zinc_inter_token_seconds",
            "Mean time between the tokens of an answer.",
            _TOKEN_SECONDS,
            ["model"],
        )
        self.running = gauge("requests_running", "Running sequences.", "model")
        self.waiting = gauge("requests_waiting", "Waiting sequences.", "model")
        self.steps = gauge("engine_steps", "Engine steps since the model was loaded.", "model")
        self.kv_blocks = gauge("kv_blocks", "Blocks of the KV cache.", "model")
        self.kv_blocks_used = gauge("kv_blocks_used", "Blocks used by sequences.", "model")
        self.kv_blocks_cached = gauge(
            "kv_blocks_cached", "Blocks used only by the prefix cache.", "model"
        )
        self.cached_bytes = gauge("prefix_cache_bytes", "Bytes of the prefix cache.", "model")
        self.cache_lookups = gauge("prefix_cache_lookups", "Lookups of the prefix cache.", "model")
        self.cache_hits = gauge("prefix_cache_hits", "Hits of the prefix cache.", "model")
        self.fetched_tokens = gauge(
            "prefix_cache_fetched_tokens", "Tokens fetched from other replicas.", "model"
        )
        self.kv_bytes = gauge("kv_bytes", "Bytes of the KV cache.", "model")
        self.weights_bytes = gauge("weights_bytes", "Bytes of weights.", "model")
        self.loaded = gauge("model_loaded", "Whether a model is loaded.", "model")

    @property
    def families(self) -> list[Family]:
        """All metrics."""
        return [each for each in vars(self).values() if isinstance(each, Family)]

    def observer(self, model: str) -> Observer:
        """Return the observer that counts the answers of `model`."""

        def ended(reason: str, t: Timings, count: int) -> None:
            self.answers.add(count, model, reason)
            self.prompt_tokens.add(t.prompt_tokens, model)
            self.cached_tokens.add(t.cached_tokens, model)
            self.prompt_seconds.add(t.prompt_seconds, model)
            self.generated_tokens.add(t.generated_tokens, model)
            self.generate_seconds.add(t.generate_seconds, model)
            self.drafted_tokens.add(t.drafted_tokens, model)
            self.accepted_draft_tokens.add(t.accepted_tokens, model)

        return Observer(
            first_token=lambda seconds: self.first_token.observe(seconds, model),
            between_tokens=lambda seconds: self.between_tokens.observe(seconds, model),
            ended=ended,
        )

    @property
    def of_models(self) -> list[Family]:
        """The gauges, which have a value only while a model is loaded."""
        return [f for f in self.families if f.kind == "gauge"]

    def describe(self, model: str, stats: RunnerStats, memory: MemoryReport) -> None:
        """Set the gauges of a loaded model."""
        for gauge, value in (
            (self.running, stats.running),
            (self.waiting, stats.waiting),
            (self.steps, stats.steps),
            (self.kv_blocks, stats.blocks),
            (self.kv_blocks_used, stats.blocks_used),
            (self.kv_blocks_cached, stats.blocks_cached),
            (self.cached_bytes, stats.cached_bytes),
            (self.cache_lookups, stats.cache_lookups),
            (self.cache_hits, stats.cache_hits),
            (self.fetched_tokens, stats.fetched_tokens),
            (self.kv_bytes, memory.kv_bytes),
            (self.weights_bytes, memory.weights_bytes),
        ):
            gauge.set(value, model)

    def _as_llama(self) -> list[Family]:
        """Return the metrics that llama.cpp's server has too, under its names.

        https://github.com/ggml-org/llama.cpp/tree/master/tools/server, "GET /metrics".
        """
        rows = (
            ("counter", "prompt_tokens_total", "Processed prompt tokens.", self._processed_tokens),
            _same("counter", "prompt_tokens_cached_total", self.cached_tokens),
            _same("counter", "prompt_seconds_total", self.prompt_seconds),
            _same("counter", "tokens_predicted_total", self.generated_tokens),
            _same("counter", "tokens_predicted_seconds_total", self.generate_seconds),
            _same("counter", "n_decode_total", self.steps),
            _same("counter", "spec_decode_num_draft_tokens_total", self.drafted_tokens),
            _same("counter", "spec_decode_num_accepted_tokens_total", self.accepted_draft_tokens),
            ("gauge", "prompt_tokens_seconds", "Prompt tokens per second.", self._prefill_speed),
            (
                "gauge",
                "predicted_tokens_seconds",
                "Generated tokens per second.",
                self._decode_speed,
            ),
            _same("gauge", "requests_processing", self.running),
            _same("gauge", "requests_deferred", self.waiting),
        )
        models = {**self.generated_tokens.known(), **self.running.known()}
        families = []
        for kind, name, help, value_of in rows:
            family = Family(kind, f"llamacpp:{name}", help, ["model"])
            for (model,) in models:
                family.set(value_of(model), model)
            families.append(family)
        return families

    def _processed_tokens(self, model: str) -> float:
        """Return the prompt tokens of a model that did not come from the prefix cache."""
        return self.prompt_tokens.value(model) - self.cached_tokens.value(model)

    def _prefill_speed(self, model: str) -> float:
        """Return the prompt tokens per second of a model."""
        return self._processed_tokens(model) / (self.prompt_seconds.value(model) or math.inf)

    def _decode_speed(self, model: str) -> float:
        """Return the generated tokens per second of a model, without the first of each answer."""
        tokens = self.generated_tokens.value(model) - self.first_token.count(model)
        return tokens / (self.generate_seconds.value(model) or math.inf)

    def render(self) -> str:
        """Return all metrics in the text format."""
        lines = []
        for family in [*self.families, *self._as_llama()]:
            lines.append(f"# HELP {family.name} {family.help}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines.extend(family.lines())
        return "\n".join(lines) + "\n"


def _same(kind: str, name: str, family: Family) -> tuple[str, str, str, Callable[[str], float]]:
    """Return kind, name, help text and value by model of a metric with the values of `family`."""
    return kind, name, family.help, family.value


def _braces(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = ",".join(f'{n}="{_escaped(v)}"' for n, v in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
