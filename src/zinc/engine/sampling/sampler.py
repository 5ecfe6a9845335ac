"""The sampler of one sequence: bias and mask, the samplers in order, a sample, logprobs.

    logits → own copy if anything rewrites them → bias, mask → samplers → sample → token

The state of a `Sampler` (recent tokens, mirostat's mu, the index of the next token) belongs to one
sequence, so other sequences in the batch cannot change its tokens. Only accepted tokens change it:
random numbers are functions of the seed and the index (`zinc.ops.noise`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from zinc.core.errors import ModelError, RequestError
from zinc.engine.sampling import truncation
from zinc.engine.sampling.allowed import Allowed, is_allowed, limited
from zinc.engine.sampling.candidates import Candidates, Floats, largest
from zinc.engine.sampling.common_chain import CommonChain, sample_common
from zinc.engine.sampling.draw import draw_position
from zinc.engine.sampling.dry import Dry
from zinc.engine.sampling.logprobs import Sampled, final_probabilities, log_probabilities
from zinc.engine.sampling.params import SamplingParams
from zinc.engine.sampling.penalties import Penalties
from zinc.ops.noise import SEED_MASK, Draw, Stream, uniform
from zinc.ops.sampling import MOST_CANDIDATES
from zinc.ops.step import MOST_BANNED, SampleParams

Processor = Callable[[Candidates], Candidates]

_LARGEST_LOGIT = 1e30  # a model's logits are within a few hundred; products stay in float32
_NO_IDS, _NO_BIAS = np.empty(0, np.int64), np.empty(0, np.float32)


class _StatefulSampler(Protocol):
    """A sampler that depends on the tokens so far."""

    def accept(self, tokens: Sequence[int]) -> None: ...
    def reset(self) -> None: ...


class Sampler:
    """Sampler of one sequence's tokens, with the settings in `params`.

    n_vocab: length of a row of logits. end_tokens: ids that `ignore_eos` bans. dry_breakers: as
    token ids, from `breaker_sequences`. `seed` is the seed in use, which is random if the request
    named none. Raises RequestError if a biased token is not in the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        *,
        end_tokens: Collection[int] = (),
        dry_breakers: Collection[Sequence[int]] = (),
    ) -> None:
        self.params = params
        self.n_vocab = n_vocab
        self._keeps_distribution = params.logprobs is not None and params.post_sampling_probs
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        banned = dict.fromkeys(end_tokens, -np.inf) if params.ignore_eos else {}
        biases = {**params.logit_bias, **banned}
        self._biased, self._bias = _NO_IDS, _NO_BIAS
        if biases:
            self._biased = np.fromiter(biases, np.int64, len(biases))
            self._bias = np.fromiter(biases.values(), np.float32, len(biases))
            if self._biased.max() >= n_vocab:
                raise RequestError(
                    f"logit_bias names token {self._biased.max()}",
                    f"the vocabulary has tokens 0 to {n_vocab - 1}",
                    "check that the ids are those of this model",
                    argument="logit_bias",
                )
        self._stateful: list[_StatefulSampler] = []
        self._penalties: Penalties | None = None
        self._surprise: tuple[int, float] | None = None  # mirostat's: the sampled token, its bits
        processors = [self._build_processor(name, dry_breakers) for name in params.samplers]
        self._processors = [each for each in processors if each is not None]
        rewrites = bool(self._processors) or any(bias > 0 for bias in biases.values())
        self._is_plain = params.greedy and params.logprobs is None and not rewrites
        self._lowered = frozenset(biases)
        active = [
            n for n, process in zip(params.samplers, processors, strict=True) if process is not None
        ]
        # The common chain keeps no distribution; single samplers choose the same tokens.
        self._common = None if self._keeps_distribution else CommonChain.of(params, active)
        # The device can ban few tokens. It adds no other bias.
        self._banned = tuple(biases)
        bans = len(biases) <= MOST_BANNED and all(bias == -np.inf for bias in biases.values())
        # Penalties come first there. No other sampler depends on the tokens so far.
        others = active[1:] if active[:1] == ["penalties"] else active
        self._device_chain = CommonChain.of(params, others)
        as_is = bans and params.logprobs is None and self._stateful in ([], [self._penalties])
        self._on_device = as_is and (params.greedy or _is_small(self._device_chain))
        self._restart()

    def sample(self, logits: Floats, allowed: Allowed | None = None) -> Sampled:
        """Sample the next token. The caller decides whether to `accept` it.

        The same row gives the same token until another token is accepted.
        logits: float32 [n_vocab], not written to. allowed: limits the tokens. Raises RequestError
        if no token is allowed, ModelError if logits are not finite, and the errors of `allowed`.
        """
        if logits.shape != (self.n_vocab,) or logits.dtype != np.float32:
            raise ValueError(f"logits are {logits.dtype} {logits.shape}, not [{self.n_vocab}]")
        if allowed is not None and (forced := allowed.forced()):
            return self.report(logits, forced[0])
        with np.errstate(over="ignore"):
            if self.params.greedy:
                return self.report(logits, self._greedy(logits, allowed))
            if self._common is not None:
                candidates = self._likely(self._common, logits, allowed)
                (token,) = sample_common([self._common], [candidates], [self._draw()])
            else:
                candidates = self._begin(logits, allowed)
                for process in self._processors:
                    candidates = process(candidates)
                if self.params.mirostat:
                    candidates = truncation.surprise_cut(candidates, self._mu)
                token = self._sample_from(candidates)
                return self.report(logits, token, candidates)
            return self.report(logits, token)

    def guess(self, logits: Floats, ahead: int) -> int:
        """Return a guess of the token `ahead` places after the next one.

        logits: a drafter's, float32 [n_vocab]. The guess is drawn with the noise of its place, so
        it is often the token that the model's own logits will give.
        """
        self._index += ahead
        try:
            return self.sample(logits).token
        finally:
            self._index -= ahead

    def report(self, logits: Floats, token: int, candidates: Candidates | None = None) -> Sampled:
        """Return a token with the logprobs that the request asked for.

        candidates: the candidates after all samplers; None if the token was the only one.
        """
        top = self.params.logprobs
        if top is None:
            return Sampled(token)
        if not self._keeps_distribution:
            return log_probabilities(logits, token, top)
        if candidates is None:
            return Sampled(token, 0.0, ((token, 0.0),)[:top])
        return final_probabilities(candidates, token, top)

    def fits_device(self, n_more: int = 0) -> bool:
        """Return whether the device can sample the token that follows `n_more` further tokens.

        This depends on the request and its tokens alone, so other sequences in the batch change no
        token.
        """
        penalties = self._penalties
        return self._on_device and (penalties is None or penalties.fits_device(n_more))

    def device_params(
        self, drafted: Sequence[int] = (), *, behind: bool = False
    ) -> SampleParams | None:
        """Return how the device samples a token; None if the host must sample it.

        drafted: tokens that come before it. behind: whether one further token comes before it, that
        of a step that still runs.
        """
        ahead = len(drafted) + behind
        if not self.fits_device(ahead):
            return None
        penalties = None if self._penalties is None else self._penalties.of_row(drafted, behind)
        if self._device_chain is None:
            return SampleParams(k=1, banned=self._banned, penalties=penalties)
        c, (seed, index) = self._device_chain, self._draw(ahead)
        settings = (c.k, c.min_keep, c.top_p, c.min_p, c.temperature)
        return SampleParams(*settings, index, seed, self._banned, penalties)

    def accept(self, token: int) -> None:
        """Add a token to the answer, and to the history that penalties read."""
        self.accept_prompt((token,))
        self._index += 1
        if self._surprise is not None and self._surprise[0] == token:
            error_bits = self._surprise[1] - self.params.mirostat_tau
            self._mu -= self.params.mirostat_eta * error_bits
        self._surprise = None

    def accept_prompt(self, ids: Sequence[int]) -> None:
        """Add tokens of the prompt to the history of penalties."""
        if self._stateful and len(ids):
            tokens = [int(token) for token in ids]
            if min(tokens) < 0 or max(tokens) >= self.n_vocab:
                raise ValueError(f"a token is outside the vocabulary of {self.n_vocab}")
            for sampler in self._stateful:
                sampler.accept(tokens)

    def reset(self) -> None:
        """Forget all tokens of the sequence."""
        for sampler in self._stateful:
            sampler.reset()
        self._restart()

    def _restart(self) -> None:
        self._index = 0  # of the next token in the answer
        self._mu = 2 * self.params.mirostat_tau
        self._surprise = None

    def _draw(self, ahead: int = 0) -> Draw:
        return Draw(self.seed & SEED_MASK, self._index + ahead)

    def _build_processor(
        self, name: str, dry_breakers: Collection[Sequence[int]]
    ) -> Processor | None:
        """Return the processor of the sampler `name`, or None if its settings are neutral."""
        p = self.params
        if name == "penalties":
            return self._make_penalties()
        if name == "dry":
            return self._dry(dry_breakers)
        if p.greedy:
            return None
        if name == "temperature":
            return partial(truncation.temperature, t=p.temperature) if p.temperature != 1 else None
        return None if p.mirostat else self._truncation(name)

    def _make_penalties(self) -> Processor | None:
        p = self.params
        neutral = p.repeat_penalty == 1 and p.presence_penalty == p.frequency_penalty == 0
        if neutral or p.repeat_last_n == 0:
            return None
        self._penalties = Penalties(
            p.repeat_last_n, p.repeat_penalty, p.presence_penalty, p.frequency_penalty
        )
        return self._with_state(self._penalties)

    def _dry(self, breakers: Collection[Sequence[int]]) -> Processor | None:
        p = self.params
        if p.dry_multiplier == 0 or p.dry_base < 1 or p.dry_penalty_last_n == 0:
            return None
        return self._with_state(
            Dry(p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n, breakers)
        )

    def _truncation(self, name: str) -> Processor | None:
        p = self.params
        truncations: dict[str, tuple[bool, Processor]] = {
            "top_n_sigma": (p.top_n_sigma > 0, partial(truncation.top_n_sigma, n=p.top_n_sigma)),
            "top_k": (p.top_k > 0, partial(truncation.top_k, k=p.top_k)),
            "typ_p": (
                p.typical_p < 1,
                partial(truncation.typical_p, p=p.typical_p, min_keep=p.min_keep),
            ),
            "top_p": (p.top_p < 1, partial(truncation.top_p, p=p.top_p, min_keep=p.min_keep)),
            "min_p": (p.min_p > 0, partial(truncation.min_p, p=p.min_p, min_keep=p.min_keep)),
            "xtc": (p.xtc_probability > 0, self._xtc),
        }
        active, processor = truncations[name]
        return processor if active else None

    def _with_state(self, sampler: Penalties | Dry) -> Processor:
        self._stateful.append(sampler)
        return sampler

    def _xtc(self, candidates: Candidates) -> Candidates:
        if uniform(self._draw(), Stream.EXCLUDE) > self.params.xtc_probability:
            return candidates
        return truncation.xtc(candidates, self.params.xtc_threshold, self.params.min_keep)

    def _begin(self, logits: Floats, allowed: Allowed | None) -> Candidates:
        """Return the candidates of a row. Raises if there are none or the logits are not finite."""
        candidates = self._candidates(logits, allowed)
        check_peak(float(candidates.peak()) if len(candidates) else -math.inf)
        return candidates

    def _candidates(self, logits: Floats, allowed: Allowed | None) -> Candidates:
        """Return the allowed candidates with their biases.

        The logits are copied if, and only if, a bias or a sampler rewrites them.
        """
        mask = None if allowed is None else allowed.mask()
        if self._biased.size or (self._stateful and mask is None):
            logits = logits.copy()
            logits[self._biased] += self._bias
        return Candidates(logits) if mask is None else limited(logits, mask)

    def _likely(self, chain: CommonChain, logits: Floats, allowed: Allowed | None) -> Candidates:
        """Return enough candidates for the common chain.

        They are all allowed tokens, or the most likely ones. Asks for a mask only if the sample may
        depend on it, and masks the whole row only if too few of the most likely tokens are allowed.
        """
        if allowed is not None:
            row = self._candidates(logits, None).logits
            if abs(float(row.max())) < _LARGEST_LOGIT:
                ids = largest(row, 2 * chain.k)
                likely = Candidates(row[ids], ids, ordered=True)
                if allowed.allows(int(ids[0])) and chain.draws_first(likely, self._draw()):
                    return likely.head(1)
                mask = allowed.mask()
                if mask is None:
                    return likely
                kept = np.flatnonzero(is_allowed(mask, ids))
                if kept.size >= chain.k:
                    return likely.take(kept, ordered=True)
        return self._begin(logits, allowed)

    def _greedy(self, logits: Floats, allowed: Allowed | None) -> int:
        """Return the most likely allowed token.

        Each sampler rewrites single logits here, so if the most likely token of all is allowed, it
        is the answer. It usually is, and then no mask is needed.
        """
        if allowed is not None:
            token, peak = self._likeliest(self._candidates(logits, None))
            if abs(peak) < _LARGEST_LOGIT and allowed.allows(token):
                return token
        token, peak = self._likeliest(self._candidates(logits, allowed))
        check_peak(peak)
        return token

    def _likeliest(self, candidates: Candidates) -> tuple[int, float]:
        """Return the most likely token, and the largest logit before any sampler.

        The first of equal logits wins.
        """
        if not len(candidates):
            return -1, -math.inf
        best = int(candidates.logits.argmax())
        peak = float(candidates.logits[best])
        if self._processors:
            for process in self._processors:
                candidates = process(candidates)
            best = int(candidates.logits.argmax())
        return candidates.token(best), peak

    def _sample_from(self, candidates: Candidates) -> int:
        position = draw_position(candidates, self._draw())
        token = candidates.token(position)
        if self.params.mirostat:
            # Mirostat 2 (Basu et al. 2021, arXiv:2007.14966): mu follows the target surprise.
            weights = candidates.weights()
            share = float(weights[position]) / float(weights.sum(dtype=np.float64))
            self._surprise = token, -math.log2(share)
        return token


def _is_small(chain: CommonChain | None) -> bool:
    """Return whether the device can find the candidates of a chain."""
    return chain is not None and chain.k <= MOST_CANDIDATES


def sample_rows(
    samplers: Sequence[Sampler], logits: Floats, allowed: Sequence[Allowed | None]
) -> list[Sampled | Exception]:
    """Sample a token from each row of logits [rows, n_vocab]; an element is the token or its error.

    Greedy rows, and rows with the common chain, are sampled together. See `Sampler.sample`.
    """
    found: dict[int, Sampled | Exception] = dict(_greedy_rows(samplers, logits, allowed))
    rows: dict[int, tuple[CommonChain, Candidates]] = {}
    with np.errstate(over="ignore"):
        for i, sampler in enumerate(samplers):
            limits, chain = allowed[i], sampler._common
            try:
                if chain is not None and not (limits is not None and limits.forced()):
                    rows[i] = chain, sampler._likely(chain, logits[i], limits)
                elif i not in found:
                    found[i] = sampler.sample(logits[i], limits)
            except Exception as error:
                found[i] = error
        if rows:
            chains, candidates = zip(*rows.values(), strict=True)
            tokens = sample_common(chains, candidates, [samplers[i]._draw() for i in rows])
            for i, token in zip(rows, tokens, strict=True):
                found[i] = samplers[i].report(logits[i], token)
    return [found[i] for i in range(len(samplers))]


def _greedy_rows(
    samplers: Sequence[Sampler], logits: Floats, allowed: Sequence[Allowed | None]
) -> dict[int, Sampled]:
    """Return the most likely token of each row that needs nothing else, by row.

    Rows with a lowered token, and rows that are not finite, are left out.
    """
    plain = [i for i, s in enumerate(samplers) if s._is_plain and allowed[i] is None]
    if len(plain) < 2:
        return {}
    best = (logits if len(plain) == len(samplers) else logits[plain]).argmax(axis=1)
    return {
        i: Sampled(token)
        for i, token in zip(plain, best.tolist(), strict=True)
        if token not in samplers[i]._lowered and abs(logits[i, token]) < _LARGEST_LOGIT
    }


def check_peak(peak: float) -> None:
    """Check the largest logit of a row.

    Raises RequestError if no token is allowed (-inf), ModelError for any other value out of range.
    """
    if peak == -math.inf:
        raise RequestError(
            "no token can be sampled",
            "logit_bias, ignore_eos and the constraint together ban the whole vocabulary",
            "leave one of them out",
        )
    if not abs(peak) < _LARGEST_LOGIT:
        raise ModelError(
            f"the model's largest logit is {peak:g}",
            "a forward pass went wrong or the weights are damaged",
            "run `zinc verify` to find the first layer that differs from the reference",
        )
