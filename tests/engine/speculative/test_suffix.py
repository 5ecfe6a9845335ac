"""The suffix drafter, compared with a search that reads the whole text for every match length."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.engine.speculative import suffix_index
from zinc.engine.speculative.answer_store import AnswerStore
from zinc.engine.speculative.draft import NO_DRAFT, Draft
from zinc.engine.speculative.suffix import LEAST_PROBABILITY, PRIOR, SuffixDrafter
from zinc.engine.speculative.suffix_index import END, LONGEST_MATCH, SuffixIndex

TEXTS = st.lists(st.integers(0, 2), max_size=120)


@pytest.fixture
def unbounded(monkeypatch):
    """Let searches follow chains to their end, so that no match is left out."""
    monkeypatch.setattr(suffix_index, "_MOST_POSITIONS", 1 << 30)


def match_length(text: list[int], position: int, tail: list[int]) -> int:
    """Return how many tokens before `position` of `text` equal the last ones of `tail`."""
    n = 0
    while n < min(position, len(tail), LONGEST_MATCH) and text[position - 1 - n] == tail[-1 - n]:
        n += 1
    return n


def longest_matches(text: list[int], tail: list[int]) -> tuple[list[int], int]:
    """Return the positions behind the longest matches, newest first, and their length."""
    lengths = {p: match_length(text, p, tail) for p in reversed(range(1, len(text)))}
    longest = max(lengths.values(), default=0)
    return [p for p, length in lengths.items() if length == longest > 0], longest


def expected_draft(text: list[int], tail: list[int], most: int) -> Draft:
    """Return the draft from `text` by its definition; the end of `tail` itself is repeated."""
    positions, length = longest_matches(text, tail)
    rows = [(text[p:] * (most if text is tail else 1))[:most] for p in positions]
    rows = [row[: row.index(END)] if END in row else row for row in rows]
    draft, product = Draft(), 1.0
    for i in range(most):
        behind = [row[i] for row in rows if row[:i] == draft.tokens and len(row) > i]
        if not behind:
            break
        token, count = Counter(behind).most_common(1)[0]
        probability = count / (len(behind) + PRIOR / (length + i))
        product *= probability
        if product < LEAST_PROBABILITY:
            break
        draft.tokens.append(token)
        draft.probabilities.append(probability)
    return draft


@pytest.mark.usefixtures("unbounded")
@settings(max_examples=examples(400), deadline=None)
@given(TEXTS, st.integers(1, 12))
def test_draft_equals_that_of_a_full_search(text, most):
    draft = SuffixDrafter(text).draft(most)
    expected = expected_draft(text, text, most)
    assert draft.tokens == expected.tokens
    assert draft.probabilities == pytest.approx(expected.probabilities)


@pytest.mark.usefixtures("unbounded")
@settings(max_examples=examples(400), deadline=None)
@given(st.lists(TEXTS.filter(bool), max_size=8), TEXTS, st.integers(1, 12))
def test_draft_from_answers_equals_that_of_a_full_search(answers, tail, most):
    store = AnswerStore()
    for answer in answers:
        store.add(b"", answer)
    text = [token for answer in answers for token in [*answer, END]]
    own, past = expected_draft(tail, tail, most), expected_draft(text, tail, most)
    expected = past if past.expected > own.expected + 1e-12 else own
    assert SuffixDrafter(tail, store).draft(most).tokens == expected.tokens


@pytest.mark.usefixtures("unbounded")
@settings(max_examples=examples(400), deadline=None)
@given(TEXTS, TEXTS)
def test_matches_in_another_text_equal_those_of_a_full_search(text, tail):
    index = SuffixIndex(text)
    positions, length = index.find(SuffixIndex(tail).last)
    start = LONGEST_MATCH  # of a text in its buffer
    assert ((positions - start).tolist(), length) == longest_matches(text, tail)
    rows = index.following(positions, 5, repeats=False).tolist()
    assert rows == [(text[p - start :] + [END] * 5)[:5] for p in positions]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(TEXTS, max_size=8), st.integers(0, 200))
def test_index_does_not_depend_on_how_text_was_added(parts, n_dropped):
    text = [token for part in parts for token in part]
    grown = SuffixIndex()
    for part in parts:
        grown.extend(part)
    n_dropped = min(n_dropped, len(text))
    grown.drop(n_dropped)
    built = SuffixIndex(text[n_dropped:])
    assert len(grown) == len(built)
    found, expected = grown.find(built.last), built.find(built.last)
    assert found[1] == expected[1]
    rows = [
        index.following(x[0], 9, repeats=False) for index, x in ((grown, found), (built, expected))
    ]
    assert rows[0].tolist() == rows[1].tolist()


def test_search_is_bounded_and_still_finds_the_longest_match():
    rng = random.Random(1)
    sentence = [rng.randrange(5, 100) for _ in range(40)]
    common = [token for _ in range(5000) for token in (1, rng.randrange(5, 100))]
    text = [*sentence, 1, 2, 3, 4, *common, *sentence, 1]
    index = SuffixIndex(text)
    positions, length = index.find(index.last)
    assert (positions.tolist(), length) == ([LONGEST_MATCH + 41], 41)
    index.extend([2, 3, 1])
    positions, length = index.find(index.last)
    assert 0 < len(positions) <= suffix_index._MOST_POSITIONS
    assert length == 1
    assert SuffixDrafter(text).draft(3).tokens == [2, 3, 4]


def test_expected_tokens_are_the_sum_of_running_products():
    assert Draft([5, 6, 7], [0.8, 0.5, 0.5]).expected == pytest.approx(0.8 + 0.4 + 0.2)
    assert NO_DRAFT.expected == 0


def test_periodic_text_is_continued_beyond_its_end():
    drafter = SuffixDrafter([7, 8, 9] * 6)
    assert drafter.draft(8).tokens == [7, 8, 9, 7, 8, 9, 7, 8]
    drafter.accept([7, 8])
    assert drafter.draft(4).tokens == [9, 7, 8, 9]


def test_nothing_is_drafted_without_a_match():
    assert SuffixDrafter([]).draft(4) == NO_DRAFT
    assert SuffixDrafter([1, 2, 3]).draft(4) == NO_DRAFT
    assert SuffixDrafter([1, 2] * 9).draft(0) == NO_DRAFT


def test_added_text_is_searched():
    drafter = SuffixDrafter([1, 2, 3])
    drafter.add([50, 51, 52, 53, 54, 55])
    drafter.accept([50, 51, 52, 53])
    assert drafter.draft(8).tokens == [54, 55]


def test_answers_are_found_under_their_key_only():
    store = AnswerStore()
    store.add(b"a", [1, 2, 3, 4, 5, 6, 7, 8])
    store.add(b"b", [1, 2, 3, 4, 5, 9, 9, 9])
    tail = [1, 2, 3, 4, 5]
    assert SuffixDrafter(tail, store, b"a").draft(3).tokens == [6, 7, 8]
    assert SuffixDrafter(tail, store, b"b").draft(3).tokens == [9, 9, 9]
    assert SuffixDrafter(tail, store, b"c").draft(3) == NO_DRAFT


def test_a_draft_ends_with_the_answer_it_repeats():
    store = AnswerStore()
    store.add(b"", [1, 2, 3, 4, 5])
    store.add(b"", [6, 7, 8])
    assert SuffixDrafter([1, 2, 3], store).draft(8).tokens == [4, 5]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), TEXTS), max_size=40))
def test_store_keeps_the_newest_answers_within_its_bound(answers):
    most = 200
    store = AnswerStore(most)
    kept: list[tuple[bytes, list[int]]] = []
    for key, answer in answers:
        store.add(key, answer)
        if answer:
            kept.append((key, answer))
        while sum(len(tokens) + 1 for _, tokens in kept) > most:
            kept.pop(0)
        assert store.n_tokens == sum(len(tokens) + 1 for _, tokens in kept) <= most
        for name in (b"a", b"b", b"c"):
            text = [token for key, tokens in kept if key == name for token in [*tokens, END]]
            index = store.answers(name)
            assert (index is None) == (not text)
            assert index is None or index.last.tolist() == ([END] * LONGEST_MATCH + text)[-64:]


def test_store_keeps_the_end_of_an_answer_that_is_too_long():
    store = AnswerStore(5)
    store.add(b"", list(range(9)))
    assert store.n_tokens == 5
    assert SuffixDrafter([5, 6], store).draft(8).tokens == [7, 8]
