"""The frame of the command line: start, usage and errors."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zinc import __version__
from zinc.cli import parsed, usage
from zinc.cli.main import COMMANDS, build_parser, command, main
from zinc.core import env
from zinc.core.errors import RequestError
from zinc.engine.sampling import SamplingParams

SOURCE = Path(__file__).parent.parent.parent / "src"
HEAVY = ("numpy", "tokenizers", "jinja2", "zinc.llm", "zinc.backends", "zinc.engine.sampling")

# Modules of other commands, of constraints, of the cache on disk, and of model names.
UNUSED_BY_RUN = (
    "jinja2", "llguidance", "huggingface_hub", "pydantic", "starlette", "uvicorn", "asyncio",
    "http.client", "decimal", "fractions", "tomllib", "uuid", "tempfile", "unicodedata",
    "zinc.grammar.checked", "zinc.grammar.schema", "zinc.grammar.pattern",
    "zinc.kv.disk", "zinc.kv.cache_file", "zinc.engine.identity", "zinc.engine.load.self_test",
    "zinc.engine.load.fit", "zinc.engine.load.bandwidth", "zinc.hub.local", "zinc.hub.pull",
    "zinc.hub.choice", "zinc.gpu", "zinc.backends.vulkan", "zinc.backends.cuda", "zinc.testing",
    "zinc.server", "zinc.models.llama",
)  # fmt: skip


def python(*argv: str, **options) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        **options,
    )


@pytest.mark.parametrize(
    "statement",
    [
        "import zinc",
        "from zinc.cli.main import build_parser; build_parser()",
        "from zinc.cli.main import main; main(['--help'])",
        "from zinc.cli.main import main; main(['bench', '--help'])",
        "from zinc.cli.main import main; main(['run'])",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement):
    done = python("-c", f"{statement}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules])")
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


INTERRUPTED_IMPORT = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest may run in the background

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "MODULE":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from zinc.__main__ import main
sys.argv[1:] = ["--version"]
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["zinc.cli", "zinc.cli.usage", "zinc.core.env"])
def test_ctrl_c_during_the_imports_is_quiet(module):
    done = python("-c", INTERRUPTED_IMPORT.replace("MODULE", module))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_package_imports_no_module():
    """The program cannot handle Ctrl-C before `zinc.__main__.main` runs."""
    tree = ast.parse((SOURCE / "zinc" / "__init__.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [getattr(node, "module", None) for node in imports] == ["__future__"]


def test_a_run_imports_nothing_that_it_does_not_need():
    done = python(
        "-c",
        "import sys\nfrom zinc.cli.main import main\n"
        "status = main(['run', 'Once upon a time', '--max-tokens', '1', '--backend', 'cpu'])\n"
        f"print(status, [m for m in {UNUSED_BY_RUN} if m in sys.modules])",
    )
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_python_m_zinc_is_the_command():
    done = python("-m", "zinc", "--version")
    assert (done.returncode, done.stdout) == (0, f"zinc {__version__}\n")


def test_help_lists_every_command(zinc):
    result = zinc("--help")
    assert result.status == 0
    assert all(
        name in result.out and text.split()[0] in result.out for name, text in COMMANDS.items()
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(zinc, name):
    result = zinc(name, "--help")
    assert result.status == 0
    assert f"usage: zinc {name}" in result.out
    assert command(name).__doc__.startswith(f"`zinc {name}`")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["frobnicate"],
        ["run"],
        ["run", "a", "b"],
        ["run", "-", "--file", "b"],
        ["run", "a.gguf", "--raw", "--system", "b"],
        ["run", "a", "--raw", "--system", "b"],
        ["run", "a", "--raw", "--no-think"],
        ["run", "a", "--special"],
        ["run", "a", "--temper", "1"],
        ["run", "a", "--max-tokens", "-3"],
        ["run", "a", "--threads", "0"],
        ["run", "a", "--top-k", "x"],
        ["run", "a", "--kv-dtype", "f8"],
        ["bench", "--reps", "0"],
        ["bench", "--prefill", "0", "--decode", "0"],
        ["plan", "--json", "--dot"],
        ["perplexity", "model.gguf"],
    ],
)
def test_wrong_usage_ends_with_2(zinc, argv):
    result = zinc(*argv)
    assert result.status == 2
    assert "error: " in result.err
    assert result.out == ""
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "zinc: error: name a COMMAND\n"),
        (
            ["run"],
            "zinc run: error: there is nothing to ask: no PROMPT is given, and stdin is empty; "
            "give a PROMPT, or --file FILE\n",
        ),
        (
            ["run", "a", "b"],
            "'a' is not a model, and a PROMPT of several words needs quotes around it\n",
        ),
        (
            ["run", "-m", "qwen3", "a", "b"],
            "error: a PROMPT of several words needs quotes around it\n",
        ),
        (
            ["run", "a", "-x", "b"],
            "zinc run: error: there is no option -x. See `zinc run --help`.\n",
        ),
        (["chat", "a", "b"], "'b' is one argument too many. See `zinc chat --help`.\n"),
        (
            ["run", "a", "-n"],
            "argument -n/--max-tokens: expected one argument. See `zinc run --help`.\n",
        ),
        (
            ["run", "a", "--top-k", "1.5"],
            "argument --top-k: '1.5' is not a whole number. See `zinc run --help`.\n",
        ),
        (
            ["run", "a", "--temp", "hot"],
            "argument --temperature/--temp: 'hot' is not a number. See `zinc run --help`.\n",
        ),
        (
            ["run", "a", "--kv-dtype", "f8"],
            "--kv-dtype: 'f8' is not one of auto, f16, q8_0, q4_0. See `zinc run --help`.\n",
        ),
        (
            ["run", "a", "--shares", "a"],
            "argument --shares: 'a' is not a list of numbers such as 3,1. See `zinc run --help`.\n",
        ),
        (
            ["cluster", "simulate"],
            "zinc cluster simulate: error: name a result of `zinc bench MODEL --json`\n",
        ),
        (
            ["perplexity", "a.gguf"],
            "zinc perplexity: error: a.gguf is a model: name the MODEL first, then a text FILE\n",
        ),
        (["runn", "a"], "there is no command 'runn'; did you mean run? See `zinc --help`.\n"),
        (["lsit"], "there is no command 'lsit'; did you mean list? See `zinc --help`.\n"),
        (["frobnicate"], "there is no command 'frobnicate'. See `zinc --help`.\n"),
        (
            ["stop", "qwen3:8b"],
            "no command 'stop': `zinc serve --ttl SECONDS` unloads models that are idle. "
            "See `zinc --help`.\n",
        ),
        (
            ["create", "pirate", "-f", "Modelfile"],
            "no command 'create': a Modelfile is a model: `zinc run ./Modelfile`. "
            "See `zinc --help`.\n",
        ),
        (["help", "lsit"], "there is no command 'lsit'; did you mean list? See `zinc --help`.\n"),
    ],
)
def test_wrong_usage_says_what_to_do(zinc, argv, said):
    assert zinc(*argv).err.endswith(said)


@pytest.mark.parametrize(
    ("argv", "own"),
    [
        (["ls", "--json"], ["list", "--json"]),
        (["help"], ["--help"]),
        (["help", "ls"], ["list", "--help"]),
        (["help", "run"], ["run", "--help"]),
        (["-v"], ["--version"]),
    ],
)
def test_a_command_of_another_program_is_that_of_zinc(zinc, argv, own):
    assert zinc(*argv) == zinc(*own)


@pytest.mark.parametrize(
    "argv",
    [
        ["frobnicate"],
        ["run", "a", "-n"],
        ["run", "a", "--kv-dtype", "f8"],
        ["perplexity"],
        ["serve", "--port", "x"],
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(zinc, argv):
    err = zinc(*argv).err
    assert err.count("\n") == 1
    assert re.search(r"See `zinc( \w+)? --help`\.\n$", err)


@pytest.mark.parametrize(
    ("argv", "option", "near"),
    [
        (["bench", "-n", "5"], "-n", ""),
        (["inspect", "a", "-ctk", "q8_0"], "-ctk", ""),
        (["run", "a", "-mmodel.gguf"], "-mmodel.gguf", ""),
        (["run", "a", "-ng", "5"], "-ng", ""),
        (["run", "a", "--max-token", "5"], "--max-token", "--max-tokens"),
        (["run", "a", "--temprature", "1"], "--temprature", "--temperature"),
        (["run", "a", "--topk", "1"], "--topk", "--top-k"),
        (["run", "a", "--sede", "1"], "--sede", "--seed"),
        (["run", "a", "--main-gpu", "1"], "--main-gpu", ""),
        (["run", "a", "--frequency-penalty", "1"], "--frequency-penalty", ""),
        (["run", "a", "--rope-freq-scale", "1"], "--rope-freq-scale", ""),
        (["serve", "--stop", "a"], "--stop", ""),
        (["bench", "--ctx-size", "5"], "--ctx-size", ""),
        (["serve", "--n-predict", "5"], "--n-predict", ""),
    ],
)
def test_an_option_is_never_read_as_another_one(zinc, argv, option, near):
    result = zinc(*argv)
    suggestion = f"; did you mean {near}?" if near else "."
    assert result.status == 2
    assert f"there is no option {option}{suggestion} See" in result.err


def test_no_command_takes_a_prefix_of_its_options():
    choices = build_parser()._subparsers._group_actions[0].choices
    for parser in choices.values():
        known = parser._option_string_actions
        prefixes = {name[:n] for name in known for n in range(2, len(name))} - {"--", *known}
        for prefix in prefixes:
            assert parser._get_option_tuples(prefix) == [], (parser.prog, prefix)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "--seed", "1", "a", "-n", "2", "b"], ["a", "b"]),
        (["run", "a", "--seed", "1", "b"], ["a", "b"]),
        (["serve", "a", "--port", "0", "b"], ["a", "b"]),
    ],
)
def test_words_may_stand_between_options(monkeypatch, argv, words):
    seen = []
    name = argv[0]
    monkeypatch.setattr(command(name), "run", lambda args: seen.append(args) or 0)
    assert main(argv) == 0
    assert (seen[0].prompt if name == "run" else seen[0].models) == words


def test_a_number_may_follow_its_letter():
    parse = build_parser("run").parse_args
    for argv in (["-n5", "-t2", "-c64"], ["-n", "5", "-t=2", "--context=64"]):
        args = parse(["run", "hi", *argv])
        assert (args.max_tokens, args.threads, args.context) == (5, 2, 64)


def test_a_name_that_is_no_file_is_not_downloaded(zinc):
    result = zinc("run", "-m", "Qwen/Qwen3-0.6B-GGUF", "Hello")
    assert "Run `zinc pull Qwen/Qwen3-0.6B-GGUF`" in result.err


def bad_files(folder: Path, good: bytes) -> dict[str, Path]:
    files = {
        "not GGUF": b"<html>not found</html>",
        "empty": b"",
        "magic only": b"GGUF",
        "truncated header": good[:200],
        "truncated tensors": good[: len(good) // 2],
        "version 99": good[:4] + b"\x63\0\0\0" + good[8:],
        "2^60 tensors": good[:8] + (1 << 60).to_bytes(8, "little") + good[16:],
        "2^60 keys": good[:16] + (1 << 60).to_bytes(8, "little") + good[24:],
    }
    paths = {name: folder / f"bad{i}.gguf" for i, name in enumerate(files)}
    for name, path in paths.items():
        path.write_bytes(files[name])
    pipe = folder / "pipe.gguf"
    os.mkfifo(pipe)
    return paths | {"missing": folder / "none.gguf", "folder": folder, "pipe": pipe}


MODEL_COMMANDS = {
    "run": ["hi", "-m"],
    "chat": ["-m"],
    "tokenize": ["hi", "-m"],
    **{name: [] for name in ("inspect", "plan", "bench", "verify")},
}


@pytest.mark.parametrize("folder", [".", "..", "./"])
def test_a_folder_is_named_in_the_error(zinc, folder):
    """The full stop at the end of a sentence is not that of a path."""
    what = f"cannot open {Path(folder)}: it is a folder. Name a .gguf file inside it."
    assert zinc("inspect", folder).err == f"zinc: {what}\n"


@pytest.mark.parametrize("name", ["show", "check", "tune", "perplexity"])
def test_a_model_is_an_argument_or_an_option(name):
    rest = ["prose.txt"] if name == "perplexity" else []
    for words in (["a.gguf", *rest], ["-m", "a.gguf", *rest]):
        args = build_parser(name).parse_args([name, *words])
        parsed.merge_models(args)
        assert args.model == "a.gguf"
    assert build_parser(name).parse_args([name, *rest]).model is None


@pytest.mark.parametrize("name", [*MODEL_COMMANDS, "perplexity"])
def test_a_damaged_model_file_is_one_line_on_stderr(zinc, tmp_path, fixture_model, name):
    prose = tmp_path / "prose.txt"
    prose.write_text("some words")
    for path in bad_files(tmp_path, fixture_model.read_bytes()).values():
        if name == "perplexity":
            result = zinc(name, path, prose, "--backend", "ref")
        else:
            backend = [] if name in ("inspect", "tokenize") else ["--backend", "ref"]
            result = zinc(name, *MODEL_COMMANDS[name], path, *backend)
        assert result.status == 1
        assert result.out == ""
        assert re.fullmatch(r"zinc: .*[^.]\.\n", result.err), result.err
        assert str(path) in result.err


@pytest.mark.parametrize(
    ("argv", "stdin", "expected"),
    [
        (["run", "-"], b"caf\xe9", "standard input is not UTF-8 text: byte 4 is 0xe9"),
        (["tokenize", "-"], b"\xff", "standard input is not UTF-8 text: byte 1 is 0xff"),
        (["run", "a\udcff"], b"", "the prompt is not UTF-8 text"),
        (["run", "a", "--system", "\udcff"], b"", "the system prompt is not UTF-8 text"),
        (["run", "--file", "/nonexistent/prompt"], b"", "cannot read /nonexistent/prompt"),
        (["run", "--file", "/"], b"", "cannot read /: "),
        (["run", "a", "--temperature", "-1"], b"", "--temperature is -1.0"),
        (["run", "a", "--top-p", "nan"], b"", "--top-p is nan"),
        (["serve", "--repeat-penalty", "0", "--port", "0"], b"", "--repeat-penalty is 0.0: it"),
        (["chat", "--top-k", "-3"], b"", "--top-k is -3: it must be"),
        (
            ["run", "a", "--backend", "abacus"],
            b"",
            "there is no backend 'abacus'. Choose one of cpu, cuda, vulkan, or leave",
        ),
        (["run", "a", "--context", "999999999", "--backend", "ref"], b"", "a context of"),
        (["run", "", "--raw", "--backend", "ref"], b"", "the prompt is empty"),
        (["run", "a b " * 9000, "--backend", "ref"], b"", "the prompt is too long"),
        (["run", "hi", "--context", "4", "--backend", "ref"], b"", "the prompt is too long"),
        (["verify", "--tokens", "5000", "--backend", "ref"], b"", "--tokens 5000 is too large"),
        (["bench", "--depth", "9999", "--backend", "ref"], b"", "a context of 10,127 tokens"),
    ],
)
def test_bad_input_is_one_line_on_stderr(zinc, argv, stdin, expected):
    result = zinc(*argv, stdin=stdin)
    assert result.status == 1
    assert result.out == ""
    last = result.err.splitlines()[-1]
    assert last.startswith(f"zinc: {expected}")
    choices = build_parser()._subparsers._group_actions[0].choices
    known = choices[argv[0]]._option_string_actions
    assert set(re.findall(r"(?<![\w-])--[a-z-]+", last)) <= set(known), "options it does not have"
    # Only the line about the model may precede it.
    assert all("embedded" in line for line in result.err.splitlines()[:-1])


def test_a_prompt_file_that_is_no_text(zinc, tmp_path):
    path = tmp_path / "prompt"
    path.write_bytes(b"abc\x80")
    result = zinc("run", "--file", path)
    assert result.status == 1
    assert "is not UTF-8 text: byte 4 is 0x80" in result.err


def test_a_model_without_template_fails_before_the_first_message(zinc, fixture_model):
    for argv in (["run", "hi"], ["chat"]):
        result = zinc(*argv, "-m", fixture_model, "--backend", "ref")
        assert result.status == 1
        assert "has no chat template" in result.err
        assert "--raw" in result.err


def test_a_message_stays_on_one_line(zinc):
    result = zinc("inspect", "no\nsuch\x1b[31m.gguf")
    assert result.err == "zinc: cannot open no\\nsuch\\x1b[31m.gguf: there is no such file. " \
        "Check the path.\n"  # fmt: skip


def status_before_head(command: str, n_bytes: int) -> subprocess.CompletedProcess[str]:
    """Run `zinc COMMAND | head -c N_BYTES`; return the status of zinc."""
    script = f"{sys.executable} -m zinc {command} | head -c {n_bytes}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def test_a_reader_that_goes_away_is_no_error(fixture_model):
    done = status_before_head(f"inspect --json '{fixture_model}'", 10)
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0: the whole output fitted into the pipe


@pytest.mark.parametrize(
    "command",
    ["run 'Tell me a long story'", "chat <<< $'Tell me a long story\nTell me another'"],
)
def test_a_reader_that_goes_away_ends_an_answer_quietly(command):
    done = status_before_head(command, 5)
    assert len(done.stdout) == 5
    notes = re.compile("the embedded zinc-demo|the model runs on")
    assert [line for line in done.stderr.splitlines() if not notes.search(line)] == []
    assert done.returncode in (0, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(fixture_model):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "zinc", "inspect", str(fixture_model)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
    assert done.returncode == 1
    assert done.stderr == "zinc: cannot write the output: No space left on device.\n"


def test_interruption_ends_with_130(zinc, monkeypatch):
    def interrupted(args):
        raise KeyboardInterrupt

    for step in ("add_arguments", "run"):
        monkeypatch.setattr(command("check"), step, interrupted)
        result = zinc("check")
        assert (result.status, result.err) == (130, "")
        monkeypatch.undo()


def test_memory_that_runs_out_is_an_error(zinc, monkeypatch):
    def exhausted(args):
        raise MemoryError

    monkeypatch.setattr(command("check"), "run", exhausted)
    result = zinc("check")
    assert result.status == 1
    assert result.err.startswith("zinc: there is not enough memory")


@pytest.mark.parametrize(
    ("text", "why"), [("", "an empty text would end"), ("\udcff", "this is not UTF-8 text")]
)
def test_a_stop_string_must_be_text(zinc, text, why):
    result = zinc("run", "a", "--stop", text)
    assert result.status == 2
    assert f"argument --stop: {why}" in result.err


def test_sampling_defaults_in_the_help_are_those_of_the_sampler():
    for option, kind, text in usage.SAMPLING:
        default = getattr(SamplingParams(), option.lstrip("-").replace("-", "_"))
        stated = re.search(r"\(default: (.*)\)", text)[1]
        if default is not None:
            assert kind(stated) == default, option
        else:
            assert "new one" in stated


def test_environment_variables(monkeypatch):
    assert env.THREADS.get({"ZINC_THREADS": "3"}) == 3
    assert env.THREADS.get({"ZINC_THREADS": ""}) is None
    for value in ("0", "two", "1.5"):
        with pytest.raises(RequestError, match="ZINC_THREADS"):
            env.THREADS.get({"ZINC_THREADS": value})
    names = [variable.name for variable in env.VARIABLES]
    assert len(names) == len(set(names)) <= 15
    declared = {v.name for v in vars(env).values() if isinstance(v, env.Variable)}
    assert declared == set(names)


def test_every_variable_is_in_the_help_and_on_its_page(zinc):
    page = SOURCE.parent / "docs" / "reference" / "environment.md"
    assert page.read_text() == env.markdown(), (
        f"{page} is out of date: python -m zinc.core.env > {page}"
    )
    text = zinc("--help").out
    choices = build_parser()._subparsers._group_actions[0].choices
    options = choices["run"]._option_string_actions
    for variable in env.VARIABLES:
        assert f"  {variable.name} " in text
        assert f"| `{variable.name}` | {variable.doc} |" in env.markdown()
        assert not variable.option or variable.option in options


def test_the_page_of_variables_is_printed_by_its_module():
    assert python("-m", "zinc.core.env").stdout == env.markdown()


def test_no_other_module_reads_a_variable_of_ours():
    for path in SOURCE.rglob("*.py"):
        if path.name != "env.py":
            assert not re.search(r"""["']ZINC_[A-Z]""", path.read_text()), path


def test_environment_chooses_the_backend_and_options_win(zinc, monkeypatch, fixture_model):
    monkeypatch.setenv("ZINC_BACKEND", "null")
    assert json.loads(zinc("plan", fixture_model, "--json").out)["backend"] == "null"
    chosen = zinc("plan", fixture_model, "--json", "--backend", "ref").out
    assert json.loads(chosen)["backend"] == "ref"


def test_a_bad_variable_is_one_line(zinc, monkeypatch):
    monkeypatch.setenv("ZINC_LOG", "loud")
    result = zinc("check")
    assert result.status == 1
    assert result.err.startswith("zinc: the environment variable ZINC_LOG is 'loud'")


def test_debug_log_shows_where_an_error_came_from():
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "zinc", "inspect", "/nonexistent"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "ZINC_LOG": "debug"},
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_parser_and_main_agree_on_the_commands():
    actions = build_parser()._subparsers._group_actions[0].choices
    assert list(actions) == list(COMMANDS)
    assert main(["--version"]) == 0
