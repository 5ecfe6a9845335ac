"""POST /v1/completions, through OpenAI's own client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from serving import MODEL, Running

from zinc import LLM, SamplingParams

PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def create(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> Any:
    fields = {"model": MODEL, "temperature": 0, "max_tokens": 24, **fields}
    return client.completions.create(prompt=prompt, **fields)


def test_text(client, llm: LLM):
    create(client, max_tokens=1)  # fills the prefix cache
    found = create(client)
    assert found.object == "text_completion"
    assert found.choices[0].text == llm.generate(PROMPT, GREEDY).text
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 24
    chunks = list(create(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].text for c in chunks if c.choices)
    assert text == found.choices[0].text
    assert chunks[-1].usage == found.usage


def test_tokens_and_batches(client, llm: LLM):
    ids = llm.tokenizer.encode(PROMPT)
    assert create(client, ids).choices[0].text == create(client).choices[0].text
    prompts = [PROMPT, "The king said", "In the dark forest"]
    alone = [llm.generate(p, GREEDY).text for p in prompts]
    assert [c.text for c in create(client, prompts).choices] == alone
    as_ids = [llm.tokenizer.encode(p) for p in prompts]
    found = create(client, as_ids)
    assert [c.text for c in found.choices] == alone
    assert found.usage.prompt_tokens == sum(map(len, as_ids))
    two = create(client, prompts, n=2, temperature=1, seed=1)
    assert [c.index for c in two.choices] == list(range(6))
    assert two.usage.prompt_tokens == sum(map(len, as_ids))


def test_echo(client):
    plain = create(client).choices[0].text
    assert create(client, echo=True).choices[0].text == PROMPT + plain
    streamed = "".join(c.choices[0].text for c in create(client, echo=True, stream=True))
    assert streamed == PROMPT + plain


def test_logprobs(client):
    found = create(client, logprobs=2, max_tokens=6).choices[0]
    assert "".join(found.logprobs.tokens) == found.text
    assert found.logprobs.text_offset[0] == 0
    assert found.logprobs.text_offset[-1] == len(found.text) - len(found.logprobs.tokens[-1])
    assert all(len(top) == 2 for top in found.logprobs.top_logprobs)
    assert all(p <= 0 for p in found.logprobs.token_logprobs)
    offsets, tokens = [], []
    for chunk in create(client, logprobs=2, max_tokens=6, stream=True):
        if chunk.choices[0].logprobs:
            tokens += chunk.choices[0].logprobs.tokens
            offsets += chunk.choices[0].logprobs.text_offset
    assert (tokens, offsets) == (found.logprobs.tokens, found.logprobs.text_offset)


def test_the_prompt_is_scored_with_echo(client, llm: LLM):
    ids = llm.tokenizer.encode(PROMPT * 20)
    logits = llm.logits(ids).astype(np.float64)
    top = logits.max(axis=1)
    log_total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    want = [float(logits[i, t] - log_total[i]) for i, t in enumerate(ids[1:])]
    plain = create(client, ids, logprobs=1, max_tokens=3).choices[0]
    found = create(client, ids, echo=True, logprobs=1, max_tokens=3).choices[0]
    assert found.text == llm.tokenizer.decode(ids) + plain.text == "".join(found.logprobs.tokens)
    assert found.logprobs.token_logprobs[0] is None
    assert found.logprobs.top_logprobs[0] is None
    assert found.logprobs.token_logprobs[1 : len(ids)] == pytest.approx(want, abs=1e-5)
    assert found.logprobs.token_logprobs[len(ids) :] == plain.logprobs.token_logprobs
    best = [llm.tokenizer.decode([i]) for i in logits.argmax(axis=1)[:-1]]
    assert [next(iter(t)) for t in found.logprobs.top_logprobs[1 : len(ids)]] == best
    assert found.logprobs.text_offset[len(ids)] == len(llm.tokenizer.decode(ids))

    alone = create(client, ids, echo=True, logprobs=1, max_tokens=0)
    assert alone.choices[0].logprobs.tokens == found.logprobs.tokens[: len(ids)]
    assert alone.choices[0].finish_reason == "length"
    assert alone.usage.completion_tokens == 0
    pieces = list(create(client, [ids, ids[:3]], echo=True, logprobs=1, max_tokens=3, stream=True))
    mine = [p.choices[0] for p in pieces if p.choices[0].index == 0]
    assert "".join(c.text for c in mine) == found.text
    scores = [x for c in mine if c.logprobs for x in c.logprobs.token_logprobs]
    assert scores == found.logprobs.token_logprobs


def test_the_perplexity_of_a_scored_prompt_equals_that_of_the_command(client, llm: LLM):
    ids = llm.tokenizer.encode("The ship sailed north, and nobody knew why. " * 8)[:64]
    found = create(client, ids, echo=True, logprobs=0, max_tokens=0).choices[0].logprobs
    second_half = found.token_logprobs[len(ids) // 2 + 1 :]
    assert np.exp(-np.mean(second_half)) == pytest.approx(llm.perplexity(ids, len(ids)), rel=1e-6)


def test_a_grammar(client):
    extra = {"grammar": "start: /[a-f]{8}/"}
    found = create(client, [PROMPT, "Hello"], extra_body=extra).choices
    assert all(re.fullmatch("[a-f]{8}", choice.text) for choice in found)


def test_stop(client):
    whole = create(client).choices[0].text
    word = whole.split()[4]
    found = create(client, stop=[word]).choices[0]
    assert (found.text, found.finish_reason) == (whole[: whole.index(word)], "stop")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "the end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[1], "x"]}, "prompt"),
        ({"logprobs": 50}, "logprobs"),
        ({"extra_body": {"grammar": "root ::= ("}}, "grammar"),
    ],
)  # fmt: skip
def test_errors_name_the_field(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, **fields)
    assert caught.value.body["param"].split("[")[0] == param
