"""`zinc run`, `chat`, `tokenize` and `perplexity` on the embedded model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from cli.session import Session

from zinc import LLM
from zinc.chat.template import ChatTemplate
from zinc.cli import chat as chat_command
from zinc.cli import loading
from zinc.cli.answer import note_think
from zinc.cli.window import Window
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.settings import NO_SETTINGS
from zinc.llm import Chunk

GREEDY = ("--temperature", "0", "--max-tokens", "12")


@pytest.fixture(scope="module")
def llm(backend) -> Iterator[LLM]:
    with LLM(backend=backend, context=512) as llm:
        yield llm


def test_run_prints_the_answer_and_nothing_else(zinc, backend, llm):
    from zinc import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=12)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello!"},
    ]
    expected = llm.chat(messages, params, enable_thinking=False).text
    result = zinc(
        "run", "Hello!", "--system", "Be brief.", "--no-think", *GREEDY, "--backend", backend
    )
    assert (result.status, result.out) == (0, f"{expected}\n")
    assert "embedded zinc-demo-30m" in result.err
    assert len(result.err.splitlines()) == 1


def test_run_says_that_an_answer_fills_the_context(zinc, backend, tmp_path):
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {EMBEDDED_MODEL}\nPARAMETER num_ctx 40\n")
    story = ("Tell me a story.", "--temperature", "0", "--backend", backend)
    note = "zinc: the answer is cut off: the context of 40 tokens is full."
    assert zinc("run", modelfile, *story).err == f"{note}\n"
    larger = f"{note} Choose a larger --context.\n"
    assert zinc("run", EMBEDDED_MODEL, *story, "--context", "40").err == larger
    assert zinc("run", EMBEDDED_MODEL, *story, "--max-tokens", "8").err == ""


def test_run_reads_stdin_and_files_alike(zinc, backend, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("Hello, wörld!\n")
    options = (*GREEDY, "--backend", backend)
    said = [
        zinc("run", "Hello, wörld!", *options).out,
        zinc("run", "-", *options, stdin=path.read_bytes()).out,
        zinc("run", "--file", path, *options).out,
        zinc("run", *options, stdin=path.read_bytes()).out,
    ]
    assert len(said[0]) > 1
    assert len(set(said)) == 1


def test_run_puts_a_file_behind_the_prompt(zinc, backend, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Once upon a time\n")
    options = (*GREEDY, "--backend", backend)
    for raw, whole in ((), "Go on:\n\nOnce upon a time"), (["--raw"], "Go on:Once upon a time\n"):
        expected = zinc("run", whole, *raw, *options).out
        assert zinc("run", "Go on:", "-f", path, *raw, *options).out == expected
        piped = zinc("run", "Go on:", "-f", "-", *raw, *options, stdin=path.read_bytes())
        assert piped.out == expected


def test_run_with_a_seed_repeats_itself(zinc, backend):
    options = ("--temperature", "1.5", "--max-tokens", "16", "--backend", backend)
    a, b, c = (zinc("run", "Tell me a story.", "--seed", seed, *options).out for seed in (3, 3, 4))
    assert a == b != c


def test_run_and_chat_end_before_a_stop_string(zinc, backend):
    options = (*GREEDY, "--backend", backend)
    whole = zinc("run", "Tell me a story.", *options).out.strip()
    first, second = whole.split()[2], whole.split()[4]
    before = whole[: whole.index(first)].strip()
    assert before
    for stops in (["--stop", first], ["--stop", second, "-r", first]):
        result = zinc("run", "Tell me a story.", *stops, *options)
        assert (result.status, result.out.strip()) == (0, before)
    chat = zinc("chat", "--stop", first, *options, stdin=b"Tell me a story.\n")
    assert (chat.status, chat.out.strip()) == (0, before)


def test_run_raw_continues_the_text(zinc, backend, llm):
    from zinc import SamplingParams

    expected = llm.generate("Once upon a", SamplingParams(temperature=0, max_tokens=12)).text
    result = zinc("run", "Once upon a", "--raw", *GREEDY, "--backend", backend)
    assert result.out.rstrip("\n") == expected.rstrip("\n")


def test_run_raw_reads_control_tokens_only_when_asked(zinc, backend, llm):
    prompt = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
    options = (*GREEDY, "--stats", "--backend", backend)
    counts = [
        int(re.search(r"prompt (\d+) tokens", zinc("run", prompt, "--raw", *more).err)[1])
        for more in (options, ("--special", *options))
    ]
    assert counts == [
        len(llm.tokenizer.encode(prompt, parse_special=parse)) for parse in (False, True)
    ]
    assert counts[0] > counts[1]


def test_run_chats_with_another_template(zinc, backend, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages[0].content }} upon a")
    options = (*GREEDY, "--backend", backend)
    expected = zinc("run", "Once upon a", "--raw", *options).out
    assert zinc("run", "Once", "--chat-template", path, *options).out == expected
    assert zinc("run", "Once", "--raw", "--chat-template", path).status == 2
    assert "cannot read" in zinc("run", "Once", "--chat-template", tmp_path / "none").err


def test_run_stats_go_to_stderr(zinc, backend):
    result = zinc("run", "Hello!", "--stats", *GREEDY, "--backend", backend)
    assert re.search(
        r"^zinc: prompt \d+ tokens, [\d.]+ tokens/s; answer \d+ tokens, [\d.]+ tokens/s; "
        r"first token after [\d.]+ s(; [\d.]+ tokens/step, \d+ of \d+ drafted tokens accepted)?$",
        result.err,
        re.MULTILINE,
    )


def test_run_takes_a_draft_model(zinc):
    options = (*GREEDY, "--backend", "cpu", "--draft", EMBEDDED_MODEL)
    expected = zinc("run", "Hello!", *GREEDY, "--backend", "cpu").out
    assert zinc("run", "Hello!", *options).out == expected
    assert zinc("run", "Hello!", *options, "--speculate", "draft").out == expected
    refused = zinc("run", "Hello!", *options, "--speculate", "off")
    assert refused.status == 1
    assert refused.err.endswith(
        "zinc: the speculation mode 'off' uses no draft model. Leave --draft or --speculate out.\n"
    )


@pytest.mark.parametrize(("options", "shown"), [(["--think"], "hm\n"), ([], "")])
def test_reasoning_never_goes_to_stdout(zinc, monkeypatch, options, shown):
    """With a model that reasons; the embedded one rarely does."""
    asked = []

    class Reasoner(contextlib.nullcontext[object]):
        template = ChatTemplate("user: {{ messages[0].content }}\n<think>\n")
        sampling = MappingProxyType({})
        settings = NO_SETTINGS
        context = 4096

        def render(self, messages, **template_args):
            asked.append(template_args)
            return [1]

        def stream(self, prompt, params):
            for text in ("h", "m</th", "ink>\n\nHel", "lo."):
                yield Chunk(text, [1])
            yield Chunk("", [2], "stop", None)

    reasoner = Reasoner()
    reasoner.enter_result = reasoner
    monkeypatch.setattr(loading, "open_llm", lambda args: reasoner)
    result = zinc("run", "Hi", *options)
    assert (result.status, result.out, result.err) == (0, "Hello.\n", shown)
    assert asked == [{"enable_thinking": True, "thinking": True} if options else {}]


QUESTION = "{{ messages[0].content }}"
SWITCH = QUESTION + "{{ '<think>' if enable_thinking else '<think></think>' }}"
ALWAYS = QUESTION + "<think>\n"
OLD_TURNS = "{{ messages[0].content.split('</think>')[-1] }}"
HARMONY = QUESTION + "<|channel|><|message|>analysis<|start|>assistant"


@pytest.mark.parametrize(
    ("source", "think", "no_think"),
    [
        (QUESTION, "on", ""),
        (SWITCH, "", ""),
        (SWITCH.replace("enable_thinking", "thinking"), "", ""),
        (ALWAYS, "", "off"),
        (OLD_TURNS, "on", "off"),
        (HARMONY, "", "off"),
    ],
)
def test_a_think_option_that_the_template_ignores_is_noted(capsys, source, think, no_think):
    template = ChatTemplate(source, name="model.gguf")
    for choice, option, switch in ((True, "--think", think), (False, "--no-think", no_think)):
        note_think(template, choice)
        expected = (
            f"zinc: {option} has no effect: the chat template of model.gguf cannot turn "
            f"reasoning {switch}.\n"
        )
        assert capsys.readouterr().err == (expected if switch else "")
    note_think(template, None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["run", "chat"])
def test_think_without_reasoning_is_noted(zinc, backend, tmp_path, command):
    path = tmp_path / "template.jinja"
    path.write_text(QUESTION)
    options = ("--think", "--chat-template", path, "--backend", backend, *GREEDY)
    result = zinc(command, *(["Hi"] if command == "run" else []), *options, stdin=b"Hi\n")
    assert result.status == 0
    assert "--think has no effect" in result.err


@pytest.mark.parametrize("command", [("run", "fox"), ("run", "--raw", "fox"), ("chat",)])
def test_an_encoder_does_not_answer(zinc, command):
    path = Path(__file__).parents[1] / "data" / "encoders" / "bert.gguf"
    result = zinc(*command, "-m", path, "--backend", "cpu")
    assert (result.status, result.out.strip()) == (1, "")
    assert "it is an encoder, which turns texts into embeddings" in result.err
    assert "none: an encoder, for embeddings" in zinc("inspect", path).out


def test_tokenize_shows_ids_and_pieces(zinc, llm):
    words = "Hello wörld 🙂 <|im_end|>"
    result = zinc("tokenize", words, "--json")
    found = json.loads(result.out)
    assert found["ids"] == llm.tokenizer.encode(words)
    assert found["count"] == len(found["ids"]) == len(found["pieces"])
    assert found["pieces"][0] == "Hello"
    assert r"\xc3" in found["pieces"]
    lines = zinc("tokenize", words).out.splitlines()
    assert [int(line.split()[0]) for line in lines] == [*found["ids"], len(found["ids"])]
    assert zinc("tokenize", "-", "--json", stdin=words.encode()).out == result.out


def test_tokenize_parses_control_tokens_only_when_asked(zinc, llm):
    end = llm.tokenizer.id_of("<|im_end|>")
    assert json.loads(zinc("tokenize", "<|im_end|>", "--special", "--json").out)["ids"] == [end]
    assert end not in json.loads(zinc("tokenize", "<|im_end|>", "--json").out)["ids"]


def test_perplexity_is_that_of_the_logits(zinc, backend, llm, tmp_path):
    prose = "Once upon a time there was a little girl who lived in a house by the sea. " * 4
    path = tmp_path / "prose.txt"
    path.write_text(prose)
    result = zinc("perplexity", llm.path, path, "--window", "32", "--backend", backend, "--json")
    found = json.loads(result.out)

    ids = llm.tokenizer.encode(prose)
    nll = []
    for at in range(0, len(ids) - 31, 32):
        window = ids[at : at + 32]
        logits = llm.logits(window).astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        nll += [-log_p[i, window[i + 1]] for i in range(16, 31)]
    assert found["tokens"] == len(ids) // 32 * 32
    assert found["perplexity"] == pytest.approx(np.exp(np.mean(nll)), rel=1e-5)

    for model in (("-m", llm.path), ()):  # without a model: the embedded one, that of `llm`
        text = zinc("perplexity", path, *model, "--window", "32", "--backend", backend).out
        expected = f"perplexity {found['perplexity']:.4f} over {found['tokens']} tokens"
        assert text.startswith(expected)


def test_perplexity_refuses_a_text_that_is_too_short(zinc, backend, llm, tmp_path):
    path = tmp_path / "prose.txt"
    path.write_text("short")
    result = zinc("perplexity", llm.path, path, "--backend", backend)
    assert result.status == 1
    assert "the text is too short for a perplexity" in result.err
    result = zinc("perplexity", llm.path, path, "--backend", backend, "--window", "99999")
    assert result.status == 1
    assert result.err.endswith("made for 1 to 4,096. Choose a smaller --window.\n")
    assert zinc("perplexity", llm.path, path, "--window", "1").status == 2
    assert "are two models" in zinc("perplexity", "-m", llm.path, llm.path, path).err


# -- chat from a pipe ---------------------------------------------------------------------------


def test_chat_from_a_script(zinc, backend, tmp_path):
    saved, as_json = tmp_path / "chat.txt", tmp_path / "chat.json"
    lines = [
        "/system Be brief.",
        "/system",
        "Hello!",
        "/nonsense",
        "/save",
        f"/save {saved}",
        f"/save {as_json}",
        f"/save {tmp_path / 'none' / 'chat.txt'}",
        "/clear",
        "/help",
        "/exit",
        "never read",
    ]
    result = zinc("chat", *GREEDY, "--backend", backend, stdin="\n".join(lines).encode())
    assert result.status == 0
    messages = json.loads(as_json.read_text())
    assert [m["role"] for m in messages] == ["system", "user", "assistant"]
    assert messages[0]["content"] == "Be brief."
    answer = messages[2]["content"]
    assert answer
    assert saved.read_text() == f"system: Be brief.\n\nuser: Hello!\n\nassistant: {answer}\n"
    expected = f"Be brief.\n{answer}\nSaved to {saved}.\nSaved to {as_json}.\n{chat_command.HELP}\n"
    assert result.out == expected
    assert "zinc: /nonsense is not a command. /help lists them" in result.err
    assert "zinc: /save needs a file. Write /save FILE." in result.err
    assert re.search(r"zinc: cannot write .*No such file or directory. Check the path.", result.err)


def test_chat_takes_its_model_in_either_place(zinc, backend, fixture_model):
    for where in ([fixture_model], ["-m", fixture_model]):
        assert f"{fixture_model} has no chat template" in zinc("chat", *where).err
    assert "embedded" in zinc("chat", "--backend", backend).err


def test_chat_remembers_and_forgets(backend, llm, capsys):
    from zinc import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=6)
    chat = chat_command.Chat(llm, params, {}, system="Be kind.")
    assert chat.take("Hello!")
    assert chat.take("Who are you?")
    assert [m["role"] for m in chat.messages] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    chat.take("/clear")
    assert chat.messages == [{"role": "system", "content": "Be kind."}]
    chat.take("/system")
    assert capsys.readouterr().out.endswith("Be kind.\n")
    chat.take("/system Be\nbrief.")
    assert chat.messages == [{"role": "system", "content": "Be\nbrief."}]
    chat.take("/* a pasted\ncomment */")
    assert [m["content"] for m in chat.messages[:2]] == ["Be\nbrief.", "/* a pasted\ncomment */"]
    chat.take("/clear")
    assert chat.take("")
    assert len(chat.messages) == 1
    assert chat.take("/?")
    assert "/save FILE" in capsys.readouterr().out
    for word in ("/exit", "/quit", "/bye"):
        assert not chat.take(word)


def test_a_message_that_is_too_long_is_left_out(llm, capsys):
    from zinc import SamplingParams

    chat = chat_command.Chat(llm, SamplingParams(temperature=0, max_tokens=4), {})
    for system, n in (("", ""), ("Be kind.", " with the system prompt")):
        chat.take(f"/system {system}")
        chat.take("word " * 1000)
        err = capsys.readouterr().err
        assert re.search(
            rf"^zinc: the message is too long: it has [\d,]+ tokens{n}, and the context holds 512 "
            r"including the answer\. Shorten it, or start again with a larger --context\.$",
            err,
        )
        assert err.count("\n") == 1
        chat.take("Hello!")
    assert len(chat.messages) == 3


def test_a_full_context_leaves_the_oldest_turns_out(llm, capsys, tmp_path):
    from zinc import SamplingParams

    chat = chat_command.Chat(
        llm, SamplingParams(temperature=0, max_tokens=4), {}, system="Be kind."
    )
    seen: list[list[str]] = []
    fit = Window.fit

    def watch(self, system, messages):
        sent, ids = fit(self, system, messages)
        seen.append([m["content"] for m in sent])
        return sent, ids

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Window, "fit", watch)
        for i in range(12):
            assert chat.take(f"{i} " + "word " * 60)
    err = capsys.readouterr().err
    asked = [m["content"] for m in chat.messages if m["role"] == "user"]
    assert [int(text.split()[0]) for text in asked] == list(range(12))
    notes = re.findall(
        r"^zinc: the context of 512 tokens is full, so the model does not see the first "
        r"(?:(\d+) turns|turn) of this conversation\.$",
        err,
        re.MULTILINE,
    )
    assert err.count("\n") == len(notes) >= 2
    assert [int(n or 1) for n in notes] == sorted({int(n or 1) for n in notes})
    for view in seen:
        assert view[0] == "Be kind."
        assert view[1] in asked
    assert seen[-1][1] == asked[int(notes[-1] or 1)]
    assert seen[-1][-1] == asked[-1]
    # Several turns are dropped at once.
    assert len(notes) <= 5
    chat.take("/clear")
    chat.take("Hello!")
    assert capsys.readouterr().err == ""


def test_an_answer_that_fills_the_context_says_so(llm, capsys):
    from zinc import SamplingParams

    chat = chat_command.Chat(llm, SamplingParams(temperature=0, ignore_eos=True), {})
    chat.take("word " * 470)
    assert capsys.readouterr().err == "(stopped: the context is full)\n"
    chat.take("Hello!")  # and the conversation goes on
    assert "does not see the first turn" in capsys.readouterr().err
    assert len(chat.messages) == 4


# -- chat on a terminal -------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path) -> Iterator[Session]:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONUNBUFFERED": "1"}
    session = Session("chat", "--backend", "ref", "--temperature", "0", **environment)
    yield session
    session.close()


@pytest.mark.skipif(not hasattr(os, "login_tty"), reason="needs os.login_tty (Python 3.11)")
def test_ctrl_c_stops_the_answer_and_not_the_program(session, tmp_path):
    session.expect("Ctrl-D exits")
    session.expect("> ")
    session.send("Tell me a long story about a fox and a bear.\r")
    session.expect(r"bear\.\r\n")  # the echo
    session.expect(r"\w+ \w+")  # the answer has begun
    session.send("\x03")
    session.expect(r"\(stopped\)")
    session.expect("> ")
    session.press("\x03", r"\(Ctrl-D exits\)")  # at the prompt, Ctrl-C only prints a hint
    session.expect("> ")
    session.send("/save " + str(tmp_path / "chat.json") + "\r")
    session.expect("Saved to")
    session.expect("> ")  # readline reads typed text only from here on
    session.send("\x04")
    assert session.wait() == 0
    messages = json.loads((tmp_path / "chat.json").read_text())
    assert [m["role"] for m in messages] == ["user", "assistant"]
    assert messages[1]["content"]
    history = (tmp_path / "state" / "zinc" / "history").read_text()
    assert "Tell me a long story about a fox and a bear." in history


@pytest.mark.skipif(not hasattr(os, "login_tty"), reason="needs os.login_tty (Python 3.11)")
def test_ctrl_c_ends_run_with_130(tmp_path):
    session = Session("run", "Tell me a long story.", "--backend", "ref", "--temperature", "0")
    try:
        session.expect(r"embedded zinc-demo-30m\S*\r\n")
        session.expect(r"\w+ \w+")
        session.process.send_signal(signal.SIGINT)
        assert session.wait() == 130
        assert "Traceback" not in session.seen
    finally:
        session.close()
