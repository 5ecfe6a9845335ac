"""Our samplers against libllama's own, called through ctypes; skipped where there is none.

LLAMA_CPP_LIB_PATH names the folder of libllama (llama-cpp-python knows the same variable).
"""

import ctypes
import math
import os
from pathlib import Path

import numpy as np
import pytest

from zinc.engine.sampling import Sampler, SamplingParams, truncation
from zinc.engine.sampling.candidates import Candidates
from zinc.engine.sampling.dry import Dry
from zinc.engine.sampling.penalties import Penalties

VOCABULARY = 3000
SEEDS = range(12)


class TokenData(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class TokenDataArray(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.POINTER(TokenData)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class IntVector(ctypes.Structure):
    """libstdc++'s and libc++'s std::vector<int32_t>: begin, end, end of storage."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("begin", "end", "storage"))

    @classmethod
    def over(cls, array):
        address = ctypes.addressof(array)
        return cls(address, address + ctypes.sizeof(array), address + ctypes.sizeof(array))


DRY_WITH_BREAKERS = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"


@pytest.fixture(scope="module")
def library():
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if not folder:
        pytest.skip("LLAMA_CPP_LIB_PATH is not set, so there is no libllama to compare with")
    found = sorted(Path(folder).glob("libllama.*"))
    if not found:
        pytest.skip(f"no libllama in {folder}")
    loaded = ctypes.CDLL(str(found[0]))
    loaded.llama_sampler_apply.argtypes = (ctypes.c_void_p, ctypes.POINTER(TokenDataArray))
    loaded.llama_sampler_accept.argtypes = (ctypes.c_void_p, ctypes.c_int32)
    loaded.llama_sampler_free.argtypes = (ctypes.c_void_p,)
    return loaded


class Llama:
    """One of libllama's samplers: `of(name, types, arguments)`, then accept and apply."""

    def __init__(self, library, function, *arguments):
        make = getattr(library, function)
        make.restype = ctypes.c_void_p
        self.library, self.sampler = library, make(*arguments)

    def __call__(self, logits, ids=None):
        """Return the kept {id: logit} of a row, without those at -inf."""
        ids = range(len(logits)) if ids is None else ids
        pairs = zip(ids, logits.tolist(), strict=True)
        data = (TokenData * len(logits))(*(TokenData(i, x, 0) for i, x in pairs))
        array = TokenDataArray(data, len(logits), -1, False)
        self.library.llama_sampler_apply(self.sampler, ctypes.byref(array))
        kept = (array.data[i] for i in range(array.size))
        return {token.id: token.logit for token in kept if token.logit > -math.inf}

    def accept(self, tokens):
        for token in tokens:
            self.library.llama_sampler_accept(self.sampler, token)

    def __del__(self):
        self.library.llama_sampler_free(self.sampler)


def rows():
    """Flat, prose-like and peaked logits, without ties: llama.cpp leaves their order open."""
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        yield random.normal(0, (0.3, 2.0, 6.0)[seed % 3], VOCABULARY).astype(np.float32)


def as_dict(candidates):
    ids = range(len(candidates)) if candidates.ids is None else candidates.ids.tolist()
    return dict(zip(ids, candidates.logits.tolist(), strict=True))


f, i, z = ctypes.c_float, ctypes.c_int32, ctypes.c_size_t
FILTERS = (
    [("top_k", (k,), (i(k),)) for k in (1, 40, 200, 5000)]
    + [
        (name, (p, keep), (f(p), z(keep)))
        for name in ("top_p", "min_p", "typical_p")
        for p, keep in ((0.05, 0), (0.3, 0), (0.5, 30), (0.8, 1), (0.95, 600))
    ]
    + [("top_n_sigma", (n,), (f(n),)) for n in (0.5, 1.0, 2.5)]
    + [
        ("xtc", (t, keep), (f(2.0), f(t), z(keep), i(0)))
        for t, keep in ((0.01, 0), (0.05, 0), (0.1, 1), (0.1, 2999))
    ]
)


@pytest.mark.parametrize(("name", "ours", "theirs"), FILTERS)
def test_filters_keep_the_same_tokens(library, name, ours, theirs):
    function = "typical" if name == "typical_p" else name
    narrowed = 0
    for logits in rows():
        expected = Llama(library, f"llama_sampler_init_{function}", *theirs)(logits)
        kept = as_dict(getattr(truncation, name)(Candidates(logits), *ours))
        narrowed += len(kept) < VOCABULARY
        # Their running sums are float32: over thousands of tokens the cut may move by a few.
        moved = set(kept) ^ set(expected)
        assert len(moved) <= (3 if name in ("top_p", "typical_p") and len(kept) > 400 else 0)
    assert narrowed or ours in ((5000,), (0.1, 2999))


def test_temperature_scales_the_same(library):
    logits = next(rows())
    expected = Llama(library, "llama_sampler_init_temp_ext", f(0.7), f(0), f(1))(logits)
    assert as_dict(truncation.temperature(Candidates(logits), 0.7)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("last_n", "repeat", "frequency", "presence"),
    [(64, 1.3, 0.0, 0.0), (5, 1.0, 0.4, 0.2), (200, 0.9, -0.3, 0.7)],
)
def test_penalties_change_logits_the_same(library, last_n, repeat, frequency, presence):
    function, numbers = "llama_sampler_init_penalties", (f(repeat), f(frequency), f(presence))
    for seed, logits in enumerate(rows()):
        history = np.random.default_rng(seed).integers(0, 50, 150).tolist()
        theirs = Llama(library, function, i(VOCABULARY), i(last_n), *numbers)
        ours = Penalties(last_n, repeat, presence, frequency)
        theirs.accept(history)
        ours.accept(history)
        result = as_dict(ours(Candidates(logits.copy())))
        assert result == pytest.approx(theirs(logits), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("allowed", [0, 1, 2, 4])
@pytest.mark.parametrize("last_n", [6, 40, 500])
@pytest.mark.parametrize("breakers", [[], [[3]], [[4], [5, 1], [5, 1, 2], [2, 2]]])
def test_dry_changes_logits_the_same(library, allowed, last_n, breakers):
    if not hasattr(library, DRY_WITH_BREAKERS):
        pytest.skip("this libllama does not export the DRY test hook")
    arrays = [(ctypes.c_int32 * len(b))(*b) for b in breakers]
    vectors = (IntVector * len(breakers))(*map(IntVector.over, arrays))
    by_reference = ctypes.byref(IntVector.over(vectors))
    changed = 0
    for seed in SEEDS:
        history = np.random.default_rng(seed).integers(0, 7, 300).tolist()
        logits = np.random.default_rng(seed).normal(0, 2, 10).astype(np.float32)
        theirs = Llama(
            library, DRY_WITH_BREAKERS, f(0.8), f(1.75), i(allowed), i(last_n), by_reference
        )
        ours = Dry(0.8, 1.75, allowed, last_n, breakers)
        theirs.accept(history[:200])
        ours.accept(history[:200])
        for token in history[200:]:
            expected = theirs(logits)
            changed += expected != dict(enumerate(logits.tolist()))
            result = as_dict(ours(Candidates(logits.copy())))
            assert result == pytest.approx(expected, rel=1e-5, abs=1e-5)
            theirs.accept([token])
            ours.accept([token])
    assert changed or (last_n, allowed) == (6, 4)


@pytest.mark.parametrize("tau", [0.5, 2.0, 4.0])
def test_mirostat_cuts_at_the_same_surprise(library, tau):
    for logits in rows():
        theirs = Llama(library, "llama_sampler_init_mirostat_v2", i(1), f(tau), f(0.1))
        cut = truncation.surprise_cut(Candidates(logits), 2 * tau)  # mu begins at 2 tau
        assert set(as_dict(cut)) == set(theirs(logits))


def test_the_default_chain_leaves_the_same_tokens(library):
    """Every token of llama.cpp's default chain is sampled here, and no other."""
    for seed, logits in enumerate(rows()):
        theirs = dict(enumerate(logits.tolist()))
        for name, arguments in (
            ("top_k", (i(6),)),
            ("top_p", (f(0.95), z(0))),
            ("min_p", (f(0.05), z(0))),
        ):
            sampler = Llama(library, f"llama_sampler_init_{name}", *arguments)
            theirs = sampler(np.array(list(theirs.values()), np.float32), list(theirs))
        sampler = Sampler(SamplingParams(seed=seed, top_k=6, temperature=5.0), VOCABULARY)
        drawn = {sampler.sample(logits).token for _ in range(200)}
        assert drawn == set(theirs)
