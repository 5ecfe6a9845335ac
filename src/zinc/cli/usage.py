"""Options that several commands share. Imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from zinc.cli import argtypes
from zinc.core.kv_types import BYTES_PER_NUMBER

MODEL_HELP = (
    "a .gguf file, or the name of a model: qwen3:8b, org/repo[:quantisation], ollama:name; see "
    "docs/models.md (default: the embedded demo model)"
)


def add_model(parser: argparse.ArgumentParser, text: str = MODEL_HELP) -> None:
    """Add the model as an argument and as -m; `zinc.cli.parsed.merge_models` makes one of them."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=text)
    parser.add_argument(
        "-m", "--model", dest="model_option", metavar="MODEL", help="same as the positional MODEL"
    )


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Add the option -m for the model."""
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help=MODEL_HELP,
    )


def add_number(
    parser: argparse._ActionsContainer,
    option: str,
    kind: Callable[[str], float],
    default: float,
    text: str,
    metavar: str = "N",
) -> None:
    """Add an option for a number; the help text names its default."""
    text += " (default: %(default)s)"
    parser.add_argument(option, type=kind, default=default, metavar=metavar, help=text)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the options for backend and device."""
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="backend to run on (default: auto, which chooses a GPU that can hold the model, else "
        "the CPU; `zinc check` lists all)",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="device to run on: vulkan:0, or part of a name that `zinc check` lists; several "
        "devices, such as vulkan:0,vulkan:1, share the layers of the model",
    )


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add the options for backend, device, threads and device map."""
    add_device(parser)
    parser.add_argument(
        "-t",
        "--threads",
        type=argtypes.count,
        metavar="N",
        help="CPU threads (default: one per core)",
    )
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="make results independent of other requests; slower on GPUs, always on for the CPU",
    )
    group = parser.add_argument_group(
        "device map",
        "how to divide the model between devices and the CPU, see docs/placement.md (default: put "
        "as much as fits on the device)",
    )
    group.add_argument(
        "-ngl",
        "--gpu-layers",
        type=argtypes.gpu_layers,
        metavar="N",
        help="run the output and the last N - 1 layers on the device, and the rest on the CPU",
    )
    group.add_argument(
        "--cpu-moe",
        type=argtypes.natural,
        metavar="N",
        help="run the experts of the first N layers on the CPU",
    )
    group.add_argument(
        "--shares",
        type=argtypes.shares,
        metavar="N,N",
        help="divide the model between the devices of --device in this proportion (default: by "
        "their speed and memory)",
    )
    group.add_argument(
        "--split",
        choices=("layer", "tensor", "auto"),
        help="give each of several devices some layers (layer) or a part of every layer (tensor); "
        "auto estimates which is faster (default: layer)",
    )


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add the options for context, RoPE scaling and the type of the cache."""
    add_context(parser)
    add_rope(parser)
    add_kv_dtype(parser)


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the option for the context."""
    parser.add_argument(
        "-c",
        "--context",
        type=argtypes.context,
        metavar="TOKENS",
        help="maximum number of tokens in prompt and answer together "
        "(default: the model's context, or what fits in memory)",
    )


def add_rope(parser: argparse.ArgumentParser) -> None:
    """Add the options for RoPE scaling."""
    group = parser.add_argument_group("longer context", "docs/long-context.md has examples")
    group.add_argument(
        "--rope-scaling",
        choices=("none", "linear", "yarn"),
        help="type of RoPE scaling beyond the original context (default: the file's)",
    )
    group.add_argument(
        "--rope-scale",
        type=float,
        metavar="X",
        help="extended context divided by original context (default: the file's, or what --context "
        "needs)",
    )
    group.add_argument(
        "--yarn-orig-ctx",
        type=argtypes.count,
        metavar="TOKENS",
        help="original context of the model (default: the file's)",
    )
    group.add_argument(
        "--rope-always",
        action="store_true",
        help="also scale sequences that fit the original context",
    )


def add_kv_dtype(parser: argparse.ArgumentParser) -> None:
    """Add the option for the type of keys and values."""
    parser.add_argument(
        "--kv-dtype",
        choices=("auto", *BYTES_PER_NUMBER),
        default="auto",
        help="type of the KV cache (default: auto, which is q8_0 on the CPU if the model allows "
        "it, else f16); q4_0 raises the perplexity of small models by 2 to 13%% (docs/numerics.md)",
    )


def add_speculate(parser: argparse.ArgumentParser) -> None:
    """Add the options for speculative decoding."""
    parser.add_argument(
        "--speculate",
        choices=("auto", "off", "suffix", "mtp", "draft"),
        default="auto",
        help="source of drafts for speculative decoding: repeated text (suffix), and also the "
        "model's NextN block (mtp) or the model of --draft (draft); off makes no drafts (default: "
        "auto, all sources that the model has, if the backend is batch-invariant)",
    )
    add_draft(parser)


def add_draft(parser: argparse.ArgumentParser) -> None:
    """Add the option --draft."""
    parser.add_argument(
        "--draft",
        metavar="MODEL",
        help="a smaller model with the same vocabulary that drafts tokens for the model (of "
        "several, for the first one; docs/speculation.md)",
    )


def add_lora(parser: argparse.ArgumentParser) -> None:
    """Add the option --lora."""
    parser.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="FILE[=SCALE]",
        help="apply a LoRA adapter, a GGUF file, with this scale (default: 1); may be repeated "
        "(docs/lora.md)",
    )


def add_json(parser: argparse.ArgumentParser, text: str = "print JSON instead of text") -> None:
    """Add the option --json."""
    parser.add_argument("--json", action="store_true", help=text)


# Option, type, help. A test compares the defaults in the texts with SamplingParams.
SAMPLING = (
    ("--temperature", float, "randomness; 0 always takes the most likely token (default: 0.8)"),
    ("--top-k", int, "sample from the N most likely tokens; 0 turns this off (default: 40)"),
    (
        "--top-p",
        float,
        "sample from the most likely tokens up to this total probability (default: 0.95)",
    ),
    (
        "--min-p",
        float,
        "drop tokens whose probability is less than X times that of the most likely one "
        "(default: 0.05)",
    ),
    (
        "--repeat-penalty",
        float,
        "divide the score of recent tokens by X; 1 turns this off (default: 1.0)",
    ),
    (
        "--seed",
        int,
        "seed of the random numbers; the same seed and prompt give the same answer (default: a new "
        "one each time)",
    ),
)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options for sampling and the end of the answer."""
    group = add_sampler(parser, "sampling")
    group.add_argument(
        "-n",
        "--max-tokens",
        type=argtypes.token_limit,
        metavar="N",
        help="maximum number of tokens in the answer (default: up to the end of the context)",
    )
    group.add_argument(
        "--stop",
        action="append",
        type=argtypes.stop_string,
        metavar="TEXT",
        help="end the answer before this text; may be given several times (default: the texts of a "
        "Modelfile)",
    )


def add_sampler(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Add the options for sampling, in a group with this title."""
    group = parser.add_argument_group(title)
    for option, kind, text in SAMPLING:
        names = (option, "--temp") if option == "--temperature" else (option,)
        group.add_argument(*names, type=kind, metavar="X" if kind is float else "N", help=text)
    return group


def add_think(parser: argparse.ArgumentParser) -> None:
    """Add the options --think and --no-think."""
    parser.add_argument(
        "--think",
        action=argparse.BooleanOptionalAction,
        help="turn reasoning before the answer on or off (default: on for most models that support "
        "it)",
    )


def add_chat_template(parser: argparse.ArgumentParser) -> None:
    """Add the option --chat-template."""
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        help="Jinja template to use instead of the model's own",
    )
