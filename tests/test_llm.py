"""The embedded model through the Python API on the CPU, compared with llama.cpp's answers."""

from __future__ import annotations

import io
import json
from pathlib import Path

import effort
import numpy as np
import pytest

import zinc
from zinc import LLM, SamplingParams
from zinc.cli.main import main
from zinc.core.errors import RequestError, UnsupportedError, ZincError
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.formats.gguf import GGUFFile
from zinc.formats.gguf_writer import GGUFWriter
from zinc.formats.metadata import GGUFArray

ORACLE = Path(__file__).parent / "data" / "oracle"
GREEDY = SamplingParams(temperature=0, max_tokens=24)
# Both engines round activations to 8 bits, each in its own way; a lead below this may flip.
NEAR_TIE = 0.5


@pytest.fixture(scope="module")
def llm():
    # The oracle's keys and values were F16.
    with LLM(backend="cpu", threads=2, kv_dtype="f16") as model:
        yield model


def test_greedy_answers_equal_those_of_llama_cpp_up_to_near_ties(llm):
    compared = 0
    for row in json.loads((ORACLE / "greedy.json").read_text())["answers"]:
        prompt, answer = row["prompt"], row["answer"]
        logits = llm.logits(prompt + answer)[len(prompt) - 1 : -1]
        for want, lead, got in zip(answer, row["leads"], logits.argmax(axis=1), strict=True):
            assert got == want or lead < NEAR_TIE
            compared += lead >= NEAR_TIE
    assert compared > 400


def test_generation_takes_the_tokens_that_the_logits_say(llm):
    for row in json.loads((ORACLE / "greedy.json").read_text())["answers"][::5]:
        answer = llm.generate(row["prompt"], GREEDY)
        logits = llm.logits(row["prompt"] + answer.token_ids)[len(row["prompt"]) - 1 : -1]
        assert answer.token_ids == logits.argmax(axis=1).tolist()


def test_perplexity_is_that_of_llama_cpp(llm):
    report = json.loads((ORACLE / "perplexity.json").read_text())
    got = llm.perplexity((ORACLE / "prose.txt").read_text(), report["window"])
    assert abs(got / report["perplexity"] - 1) < 0.005


def test_a_batch_of_prompts_gets_the_answers_that_each_gets_alone(llm):
    prompts = ["Once upon a time", "The", "In the year 1850 the ship sailed for the north and"]
    together = llm.generate(prompts, GREEDY)
    assert [a.token_ids for a in together] == [llm.generate(p, GREEDY).token_ids for p in prompts]


def test_seeded_sampling_does_not_depend_on_company(llm):
    params = SamplingParams(seed=7, max_tokens=20)
    alone = llm.generate("Once upon a time", params).token_ids
    assert alone == llm.generate("Once upon a time", params).token_ids
    assert alone == llm.generate(["A dog", "Once upon a time", "x"], params)[1].token_ids
    assert (
        alone != llm.generate("Once upon a time", SamplingParams(seed=8, max_tokens=20)).token_ids
    )


def test_the_stream_is_the_completion(llm):
    messages = [{"role": "user", "content": "Tell me a short story."}]
    whole = llm.chat(messages, GREEDY)
    chunks = list(llm.stream(messages, GREEDY))
    assert "".join(c.text for c in chunks) == whole.text
    assert [t for c in chunks for t in c.token_ids] == whole.token_ids
    assert chunks[-1].finish_reason == whole.finish_reason == "length"
    assert chunks[-1].timings.generated_tokens == 24
    assert whole.timings.prompt_tokens_per_s > 0
    assert whole.timings.generated_tokens_per_s > 0


def test_a_closed_stream_frees_its_blocks(llm):
    stream = llm.stream("Once upon a time", GREEDY)
    next(stream)
    assert llm.engine.allocators[0].n_held > 0
    stream.close()
    assert llm.engine.allocators[0].n_held == 0
    assert llm.engine.idle


def test_a_stream_that_is_closed_before_it_is_read_is_cancelled(llm):
    llm.stream("Once upon a time", GREEDY).close()
    assert llm.engine.idle
    stream = llm.stream("Once upon a time", GREEDY)
    del stream
    assert llm.generate("Once", GREEDY).token_ids  # runs after the cancellation
    assert llm.engine.idle


def test_a_stop_string_ends_the_answer_and_is_not_in_it(llm):
    text = llm.generate("Once upon a time", GREEDY).text
    stop = text.split()[4]
    answer = llm.generate("Once upon a time", SamplingParams(temperature=0, stop=(stop,)))
    assert answer.finish_reason == "stop"
    assert answer.text == text[: text.index(stop)]


def test_logprobs_are_those_of_the_logits(llm):
    answer = llm.generate(
        "Once upon a time", SamplingParams(temperature=0, max_tokens=3, logprobs=2)
    )
    ids = llm.tokenizer.encode("Once upon a time")
    logits = llm.logits(ids + answer.token_ids)[len(ids) - 1 : -1].astype(np.float64)
    for row, sampled, token in zip(logits, answer.logprobs, answer.token_ids, strict=True):
        want = row[token] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert sampled.logprob == pytest.approx(want, abs=1e-4)
        assert [i for i, _ in sampled.top_logprobs] == np.argsort(-row)[:2].tolist()


def test_thinking_is_switched_by_a_template_argument(llm):
    messages = [{"role": "user", "content": "What is 12 + 7?"}]
    on = llm.tokenizer.decode(llm.render(messages, enable_thinking=True), skip_special=False)
    off = llm.tokenizer.decode(llm.render(messages, enable_thinking=False), skip_special=False)
    assert on != off
    assert off.endswith("</think>\n\n")


@pytest.fixture
def _empty_stdin(monkeypatch):
    """Give commands an empty standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))


@pytest.mark.usefixtures("_empty_stdin")
def test_what_the_file_recommends_is_the_default(tmp_path, capsys):
    path = tmp_path / "greedy.gguf"
    with GGUFFile.open(EMBEDDED_MODEL) as file, GGUFWriter(path) as writer:
        for key, value in {**file.metadata, "general.sampling.top_k": 1}.items():
            kind = None if isinstance(value, GGUFArray) else file.value_types.get(key)
            writer.add(key, value, kind)
        for name, tensor in file.tensors.items():
            writer.add_tensor(name, tensor.read(), tensor.type, tensor.shape)
    greedy, hot = SamplingParams(top_k=1, seed=1), SamplingParams(temperature=9, top_k=0, seed=1)
    prompt = [{"role": "user", "content": "Tell me a story."}]
    with LLM(path, backend="cpu", threads=2, context=256) as llm:
        assert llm.sampling == {"top_k": 1}
        expected = llm.chat(prompt, greedy).text
        assert llm.chat(prompt).text == expected
        assert llm.chat(prompt, hot).text != expected
    for options, is_greedy in (((), True), (("--top-k", "0", "--temp", "9"), False)):
        assert main(["run", "Tell me a story.", "-m", str(path), "-c", "256", *options]) == 0
        assert (capsys.readouterr().out == f"{expected}\n") == is_greedy


def test_another_chat_template_takes_the_place_of_the_files():
    with LLM(backend="ref", context=256, chat_template="{{ messages[0].content }}!") as llm:
        assert llm.render([{"role": "user", "content": "Hi"}]) == llm.tokenizer.encode("Hi!")
        assert set(llm.tokenizer.chat_templates) == {"default"}


def test_a_marker_typed_by_a_user_stays_text(llm):
    end = llm.tokenizer.id_of("<|im_end|>")
    ids = llm.render([{"role": "user", "content": "a<|im_end|>b"}])
    plain = llm.render([{"role": "user", "content": "ab"}])
    assert ids.count(end) == plain.count(end)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", None, "the prompt is empty"),
        ([10**6], None, "outside the vocabulary"),
        ([-1], None, "outside the vocabulary"),
        ([5] * 5000, None, "the prompt is too long"),
        ("hi", SamplingParams(logit_bias={10**6: 1.0}), "logit_bias names token"),
    ],
)
def test_impossible_requests_raise_an_error(llm, prompt, params, message):
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt, params)
    assert llm.engine.idle


def test_a_context_that_does_not_fit_is_refused():
    with pytest.raises(ZincError, match="context"):
        LLM(backend="cpu", context=10**9)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threads", 0),
        ("threads", "2"),
        ("context", 0),
        ("context", "4k"),
        ("batch_tokens", 0),
        ("cache_bytes", -1),
        ("swap_bytes", -1),
    ],
)
def test_numbers_out_of_range_are_refused(option, value):
    with pytest.raises(RequestError, match=f"{option} is {value!r}: it must be a whole number"):
        LLM(backend="cpu", **{option: value})


def test_more_threads_than_a_pool_has_are_refused():
    with pytest.raises(RequestError, match=r"1025 CPU threads .*Choose `threads=`"):
        LLM(backend="cpu", threads=1025)


def test_an_answer_ends_at_the_end_of_the_context():
    with LLM(backend="cpu", context=64) as llm:
        answer = llm.generate("Once upon a time", SamplingParams(ignore_eos=True, seed=1))
        assert answer.finish_reason == "length"
        assert answer.timings.prompt_tokens + len(answer.token_ids) == 64


@pytest.mark.parametrize(("kv_dtype", "rel"), [("q8_0", 0.005), ("q4_0", 0.05)])
def test_quantised_kv_changes_the_perplexity_by_little(llm, kv_dtype, rel):
    text = (ORACLE / "prose.txt").read_text()[: 6000 if effort.EVERY else 2500]
    with LLM(backend="cpu", kv_dtype=kv_dtype) as quantised:
        assert quantised.perplexity(text) == pytest.approx(llm.perplexity(text), rel=rel)


def test_keys_and_values_have_eight_bits_by_default():
    with LLM(backend="cpu") as q8:
        assert q8.kv_dtype == "q8_0"


def test_the_public_names_are_fixed():
    names = [
        "LLM",
        "Chunk",
        "Completion",
        "DeviceMap",
        "RopeScaling",
        "SamplingParams",
        "Tokenizer",
        "ZincError",
        "__version__",
    ]
    assert zinc.__all__ == names
    for name in names:
        assert getattr(zinc, name)


HELLO = [{"role": "user", "content": "Hello"}]


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda llm: llm.chat("hi"), RequestError, r"messages is a str: .*chat\(\[\{"),
        (lambda llm: llm.chat(HELLO[0]), RequestError, "messages is a dict"),
        (lambda llm: llm.stream(HELLO[0]), RequestError, "messages is a dict"),
        (lambda llm: llm.chat(["hi"]), RequestError, r"messages\[0\] is a str"),
        (lambda llm: llm.chat([]), RequestError, "messages is empty"),
        (lambda llm: llm.chat([{"content": "hi"}]), RequestError, r"messages\[0\] has no role"),
        (
            lambda llm: llm.chat([*HELLO, {"role": "usr", "content": "hi"}]),
            RequestError,
            r"messages\[1\] has the role 'usr': .*Write 'user'",
        ),
        (
            lambda llm: llm.render([{"role": None, "content": "hi"}]),
            RequestError,
            "has the role None",
        ),
        (lambda llm: llm.generate(HELLO), RequestError, "a list of messages.*Call chat"),
        (lambda llm: llm.generate(None), RequestError, "the prompt is None"),
        (lambda llm: llm.generate(b"hi"), RequestError, "the prompt is a bytes"),
        (lambda llm: llm.stream(["hi", "ho"]), RequestError, "a stream has one prompt"),
        (
            lambda llm: llm.generate("x", {"max_tokens": 5}),
            RequestError,
            r"params is a dict: .*SamplingParams\(max_tokens=5\), or .*keywords: max_tokens=5",
        ),
        (lambda llm: llm.generate("x", 5), RequestError, "params is an int"),
        (lambda llm: llm.chat(HELLO, {"top_k": 5}), RequestError, "params is a dict"),
        (lambda llm: llm.chat(HELLO, thinking=True), RequestError, "Use enable_thinking=True"),
        (lambda llm: llm.generate("x", max_token=5), TypeError, "did you mean 'max_tokens'"),
        (lambda llm: llm.generate("x", enable_thinking=True), TypeError, "'enable_thinking'"),
        (lambda llm: llm.chat(HELLO, max_token=5), TypeError, "did you mean 'max_tokens'"),
        (lambda llm: llm.stream(HELLO, temprature=1), TypeError, "did you mean 'temperature'"),
        (lambda llm: llm.stream("x", colour=1), TypeError, "'colour'"),
        (lambda llm: llm.generate("x", top_p=3), RequestError, "top_p is 3"),
        (lambda llm: llm.generate([5] * 5000), RequestError, "with a larger `context=`"),
        (lambda llm: llm.logits([5] * 5000), RequestError, "with a larger `context=`"),
        (lambda llm: llm.perplexity("hi"), RequestError, "a smaller `window=`"),
        (lambda llm: llm.perplexity("hi", window="x"), RequestError, "window is a str"),
        (lambda llm: llm.perplexity(5), RequestError, "text is an int: it must be a str or"),
        (lambda llm: llm.logits("hi"), RequestError, "ids is a str: it must be a list of token"),
        (lambda llm: llm.generate([1, 2.5]), RequestError, "has a float at index 1: token ids"),
        (lambda llm: llm.generate([None]), RequestError, "the prompt is None: it must be"),
        (lambda llm: llm.embed(5), RequestError, "texts is an int: it takes a text or several"),
        (lambda llm: llm.embed("x", dimensions="x"), RequestError, "dimensions is a str"),
        (lambda llm: llm.generate("x", lora=[0]), RequestError, "lora is a list: it takes a dict"),
        (lambda llm: llm.set_lora_scales({0: "x"}), RequestError, "adapter 0 is a str"),
        (lambda llm: llm.chat(HELLO, tools=5), RequestError, "tools is an int: it takes a list"),
        (lambda llm: llm.chat(HELLO, tools=["x"]), RequestError, r"tools\[0\] is a str: a tool"),
        (lambda llm: llm.chat(HELLO, tools=[{}]), RequestError, r"tools\[0\] has no name: the"),
        (
            lambda llm: llm.chat(HELLO, tools=[{"function": {"name": 5}}]),
            RequestError,
            r"tools\[0\] has no name: .* Write \{\"type\"",
        ),
        (lambda llm: llm.chat(HELLO, tool_choice="none"), TypeError, "'tool_choice': force a"),
        (lambda llm: llm.chat(HELLO, stream=True), TypeError, r"'stream': call stream\("),
        (lambda llm: llm.stream("x", n=2), TypeError, "'n': call chat for each answer"),
        (lambda llm: llm.chat(user(5)), RequestError, r"messages\[0\].content is an int: it takes"),
        (lambda llm: llm.chat(user(None)), RequestError, r"messages\[0\] has no content"),
        (lambda llm: llm.chat(user(["x"])), RequestError, r"\[0\] is not a part with a type. Wr"),
    ],
)
def test_wrong_arguments_raise_errors_about_python_arguments(llm, call, error, message):
    with pytest.raises(error, match=message):
        call(llm)
    assert llm.engine.idle


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": [{"type": "text", "text": "Hi"}, IMAGE]}, r"content\[1\] has 'image_url'"),
        ({"content": [{"type": "input_audio", "input_audio": {}}]}, r"\[0\] has 'input_audio'"),
        ({"content": [{"type": "file", "file": {}}]}, r"messages\[1\].content\[0\] has 'file'"),
        ({"content": [{"image": np.zeros((2, 2, 3))}]}, r"content\[0\] has 'image'"),
        ({"content": "Hi", "images": ["aGk="]}, r"messages\[1\] has 'images'"),
    ],
)
def test_an_image_is_an_error_that_says_that_the_model_takes_text(llm, message, said):
    conversation = [*HELLO, {"role": "user", **message}]
    for call in (llm.chat, llm.stream, llm.render):
        with pytest.raises(UnsupportedError, match=f"{said}: the model takes text only. Leave"):
            call(conversation)


def test_parts_of_text_are_one_text_for_templates_that_take_strings(llm):
    parts = [{"type": "text", "text": "Hi"}, {"type": "input_text", "text": "you"}]
    assert llm.render(user(parts)) == llm.render(user("Hi\nyou"))
    begun = [*HELLO, {"role": "assistant", "content": parts[:1]}]
    ids = llm.render(begun, continue_final_message=True)
    assert llm.tokenizer.decode(ids).endswith("Hi")
    result = [{"role": "tool", "content": parts}]
    assert llm.render(result) == llm.render([{"role": "tool", "content": "Hi\nyou"}])
    data = [{"role": "tool", "content": {"celsius": 5}}]
    with LLM(backend="ref", context=256, chat_template="{{ messages[0].content.celsius }}") as own:
        assert own.render(data) == own.tokenizer.encode("5")


def test_parts_that_a_template_takes_and_empty_lists_of_images_are_accepted():
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "Hi"}, {"type": "thinking", "text": " you"}]
    with LLM(backend="ref", context=256, chat_template=source) as llm:
        ids = llm.render([{"role": "user", "content": parts, "images": [], "image": None}])
        assert ids == llm.tokenizer.encode("Hi you")
        for kind in ("text", "input_text"):  # such a template would leave a text out
            parts[1]["type"] = kind
            assert llm.render(user(parts)) == ids
        assert llm.render(user("Hi you")) == ids


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 5}, "model is an int: it takes the path of a model file, or a name such as"),
        ({"model": b"x.gguf"}, "model is a bytes"),
        ({"draft": 5}, "draft is an int"),
        ({"cache_dir": 5}, "cache_dir is an int: it takes the path of a folder"),
        ({"lora": 5}, "lora is an int: it takes the path of a file, a list of paths, or a dict"),
        ({"lora": [5]}, "a path in lora is an int"),
        ({"lora": {"a.gguf": "1"}}, "the scale of a.gguf in lora is a str: it takes a number"),
        ({"prefix_cache": "no"}, "prefix_cache is a str: it is True or False"),
        ({"chat_template": 5}, "chat_template is an int: it takes the source of a Jinja template"),
        ({"progress": 5}, "progress is an int: it takes a function of the number of bytes loaded"),
        ({"rope": "yarn"}, r"rope is a str: it takes a RopeScaling. Write rope=RopeScaling\("),
        ({"rope": 2.0}, "rope is a float"),
        ({"device_map": "auto"}, r"device_map is a str: .* Write device_map=DeviceMap\("),
        ({"options": "x"}, "options is a str: it takes a dict. Write options="),
        ({"options": {"device": 0}}, "the backend option 'device' is an int: .* Write \"0\""),
        ({"options": {"batch_invariant": True}}, 'is a bool: .* Write "true"'),
        ({"options": {"levle": "avx2"}}, "no backend option 'levle': .* Write 'level'"),
        ({"options": {"colour": "x"}}, "the options are device, level, batch_invariant. Leave"),
        ({"options": {"device": "cpu,cpu", "colour": "x"}}, "there is no backend option 'colour'"),
        ({"lora": "none.gguf"}, "cannot read none.gguf: No such file or directory. Check the path"),
    ],
)
def test_wrong_arguments_of_a_load_are_clear_errors(arguments, message):
    with pytest.raises(ZincError, match=message):
        LLM(**{"backend": "cpu", **arguments})


@pytest.mark.parametrize("backend", ["auto", "ref"])
def test_an_unknown_backend_option_is_an_error_on_every_backend(backend):
    with pytest.raises(RequestError, match="there is no backend option 'colour'"):
        LLM(backend=backend, options={"colour": "x"})


def test_fields_of_the_sampling_may_be_keywords(llm):
    want = llm.generate("Once upon a time", GREEDY)
    assert llm.generate("Once upon a time", temperature=0, max_tokens=24).text == want.text
    assert llm.generate("Once upon a time", GREEDY, max_tokens=3).token_ids == want.token_ids[:3]
    both = llm.generate(["Once upon a time", "A dog"], temperature=0, max_tokens=24)
    assert both[0].text == want.text
    chunks = llm.stream("Once upon a time", temperature=0, max_tokens=24)
    assert "".join(c.text for c in chunks) == want.text
    whole = llm.chat(HELLO, GREEDY, enable_thinking=False)
    assert llm.chat(HELLO, temperature=0, max_tokens=24, enable_thinking=False).text == whole.text
    chunks = llm.stream(HELLO, temperature=0, max_tokens=24, enable_thinking=False)
    assert "".join(c.text for c in chunks) == whole.text
    stop = want.text.split()[4]
    assert llm.generate("Once upon a time", GREEDY, stop=stop).finish_reason == "stop"


def test_ids_may_be_an_array(llm):
    ids = llm.tokenizer.encode("Once upon a time")
    assert llm.generate(np.array(ids), GREEDY).text == llm.generate(ids, GREEDY).text


def test_a_role_that_the_template_names_is_accepted():
    source = (
        "{% for m in messages %}{% if m.role == 'critic' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with LLM(backend="ref", context=256, chat_template=source) as llm:
        critic = [{"role": "critic", "content": "Hi"}, {"role": "ipython", "content": "x"}]
        assert llm.render(critic) == llm.tokenizer.encode("Hi")
        with pytest.raises(RequestError, match="'poet'"):
            llm.render([{"role": "poet", "content": "Hi"}])


def test_a_hint_names_options_in_a_command():
    error = RequestError("no room", "", "choose {context=4096} or less, or {kv_dtype=q8_0}")
    assert error.in_options() == "no room. Choose --context 4096 or less, or --kv-dtype q8_0."
    assert str(error) == 'no room. Choose `context=4096` or less, or `kv_dtype="q8_0"`.'
    error = RequestError("no {context}", "", "leave {gpu_layers} out, or try {rope_scaling=yarn}")
    assert error.in_options() == "no {context}. Leave --gpu-layers out, or try --rope-scaling yarn."
    assert "`DeviceMap(gpu_layers=...)`" in str(error)
    assert '`rope=RopeScaling("yarn")`' in str(error)


@pytest.mark.usefixtures("_empty_stdin")
def test_the_command_names_options(capsys):
    assert main(["run", "word " * 400, "-c", "256"]) == 1
    assert "with a larger --context" in capsys.readouterr().err
    assert main(["run", "Hello", "--backend", "cpu", "-t", "1025"]) == 1
    assert "Choose --threads in that range" in capsys.readouterr().err
