"""Options that several commands share, and their checks. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zinc.core import env
from zinc.core.errors import RequestError
from zinc.core.kv_types import BYTES_PER_NUMBER

if TYPE_CHECKING:
    from zinc.engine.load.options import AdapterOption, LoadOptions
    from zinc.models.parts.context import RopeScaling
    from zinc.plan.device_map import DeviceMap


ALL_LAYERS = 1 << 16
MODEL_HELP = (
    "a .gguf file, or the name of a model: qwen3:8b, org/repo[:quantisation], ollama:name; see "
    "docs/models.md (default: the small model that comes with zinc)"
)


class UsageError(Exception):
    """Contradicting or missing arguments. The program exits as after a parser error."""


def natural(text: str) -> int:
    """Return a whole number from 0."""
    return _whole(text, 0)


def count(text: str) -> int:
    """Return a whole number from 1."""
    return _whole(text, 1)


def at_least_two(text: str) -> int:
    """Return a whole number from 2."""
    return _whole(text, 2)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
    return number


def quantity(text: str) -> float:
    """Return a number from 0, which need not be whole."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return number


def token_limit(text: str) -> int | None:
    """Return a number of tokens from 0; None, no limit, for the -1 and -2 of other programs."""
    return None if text in ("-1", "-2") else natural(text)


def stop_string(text: str) -> str:
    """Return text that can end an answer: not empty, and UTF-8."""
    try:
        if text.encode():
            return text
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("this is not UTF-8 text") from None
    raise argparse.ArgumentTypeError("an empty text would end the answer before its first word")


def gpu_layers(text: str) -> int | None:
    """Return a number of layers; "all" is more than any model has, "auto" and -1 are None."""
    if text in ("auto", "-1"):
        return None
    return ALL_LAYERS if text == "all" else natural(text)


def shares(text: str) -> tuple[float, ...]:
    """Return numbers that are separated by commas."""
    return tuple(float(number) for number in text.split(","))


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model as an argument and as -m; `merge_models` makes one of them."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help=MODEL_HELP,
    )
    parser.add_argument(
        "-m", "--model", dest="model_option", metavar="MODEL", help="same as the positional MODEL"
    )


def merge_models(args: argparse.Namespace) -> None:
    """Store the model of `-m` in `args.model`, where a positional MODEL is stored.

    Raises UsageError if both are given.
    """
    option = getattr(args, "model_option", None)
    if option is None:
        return
    if args.model is not None:
        raise UsageError(f"{args.model} and -m {option} are two models: give one of them")
    args.model = option


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
        "-t", "--threads", type=count, metavar="N", help="CPU threads (default: one per core)"
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
        type=gpu_layers,
        metavar="N",
        help="run the output and the last N - 1 layers on the device, and the rest on the CPU",
    )
    group.add_argument(
        "--cpu-moe",
        type=natural,
        metavar="N",
        help="run the experts of the first N layers on the CPU",
    )
    group.add_argument(
        "--shares",
        type=shares,
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
        type=count,
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
        type=count,
        metavar="TOKENS",
        help="original context of the model (default: the file's)",
    )
    group.add_argument(
        "--rope-always",
        action="store_true",
        help="also scale sequences that fit the original context",
    )


def rope_scaling(args: argparse.Namespace) -> RopeScaling | None:
    """Return the RoPE scaling of `add_rope`'s options, None for the file's. Raises RequestError."""
    given = (args.rope_scaling, args.rope_scale, args.yarn_orig_ctx, args.rope_always)
    if not any(given):
        return None
    from zinc.models.parts.context import RopeScaling

    return RopeScaling(*given)


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


def lora(args: argparse.Namespace) -> tuple[AdapterOption, ...]:
    """Return the adapters of --lora. Raises RequestError for a scale that is no number."""
    from zinc.engine.load.options import AdapterOption

    found = []
    for text in getattr(args, "lora", ()):
        path, mark, scale = text.rpartition("=")
        if not mark or Path(text).expanduser().exists():  # a path may contain "="
            path, scale = text, "1"
        try:
            found.append(AdapterOption(Path(path).expanduser(), float(scale)))
        except ValueError:
            raise RequestError(
                f"--lora {text}: the scale is {scale!r}", "it must be a number", "write FILE=0.5"
            ) from None
    return tuple(found)


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
        type=token_limit,
        metavar="N",
        help="maximum number of tokens in the answer (default: up to the end of the context)",
    )
    group.add_argument(
        "--stop",
        action="append",
        type=stop_string,
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


def sampler_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_sampler` that are given, as arguments of SamplingParams."""
    names = [option.lstrip("-").replace("-", "_") for option, *_ in SAMPLING]
    given = {name: getattr(args, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


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


def chat_template(args: argparse.Namespace) -> str | None:
    """Return the source of --chat-template. Raises RequestError when it cannot be read."""
    from zinc.cli import text

    path = getattr(args, "chat_template", None)
    return None if path is None else text.read_file(path)


def template_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the variables for the chat template that --think or --no-think sets."""
    from zinc.chat import reasoning

    return reasoning.template_arguments(args.think)


def backend_name(args: argparse.Namespace) -> str:
    """Return the backend that --backend, or a device such as vulkan:0, names."""
    device = _device(args) or ""
    backend, colon, _ = device.partition(":")
    named = backend if colon and "," not in device else ""
    return str(args.backend or named or env.BACKEND.get())


def _device(args: argparse.Namespace) -> str | None:
    given: str | None = getattr(args, "device", None)
    return env.DEVICE.get() if given is None else given


def threads(args: argparse.Namespace) -> int | None:
    """Return the CPU threads of the options or the environment; None for all cores."""
    return args.threads if args.threads is not None else env.THREADS.get()


def backend_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the backend, as `zinc.backends.api.create` takes them."""
    invariant = "true" if getattr(args, "batch_invariant", False) else None
    given = {"level": env.LEVEL.get(), "device": _device(args), "batch_invariant": invariant}
    return {name: value for name, value in given.items() if value is not None}


def device_map(args: argparse.Namespace) -> DeviceMap | None:
    """Return the device map of --gpu-layers, --cpu-moe, --shares and --split, None without any."""
    given = (args.gpu_layers, args.cpu_moe, args.shares, args.split)
    if all(x is None for x in given):
        return None
    from zinc.plan.device_map import DeviceMap

    split = args.split or "layer"
    return DeviceMap(args.gpu_layers, args.cpu_moe or 0, args.shares or (), split)


def load_options(args: argparse.Namespace, **fields: Any) -> LoadOptions:
    """Return what the options of a command say about loading; `fields` are set as given.

    Options that the command does not have stay at their defaults.
    """
    from zinc.engine.load.options import LoadOptions
    from zinc.engine.load.settings import settings_of

    given = {
        "settings": settings_of(getattr(args, "model", None)),
        "backend": backend_name(args),
        "threads": threads(args),
        "device_map": device_map(args),
        "context": getattr(args, "context", None),
        "rope": rope_scaling(args) if hasattr(args, "rope_scaling") else None,
        "kv_dtype": args.kv_dtype,
        "chat_template": chat_template(args),
        "backend_options": backend_options(args),
        "speculate": getattr(args, "speculate", "auto"),
    }
    return LoadOptions(lora=lora(args), **{**given, **fields})


def model_path(args: argparse.Namespace) -> Path:
    """Return the model file; note on stderr that it is the embedded one.

    On a terminal, offer to download a model that is missing. Raises as `resolve_model` does.
    """
    path = _found_or_downloaded(args.model)
    if args.model is None:
        print(f"zinc: no model was given; using the embedded {path.stem}", file=sys.stderr)
    return path


def draft_path(args: argparse.Namespace) -> Path | None:
    """Return the file of --draft, or None. It is found as that of `model_path` is."""
    name = getattr(args, "draft", None)
    return None if name is None else _found_or_downloaded(name)


def _found_or_downloaded(name: str | None) -> Path:
    from zinc.engine.load.files import resolve_model
    from zinc.hub.errors import MissingModelError

    try:
        return resolve_model(name)
    except MissingModelError as error:
        from zinc.cli import downloads

        return downloads.offer(error)


def text_argument(value: str, name: str) -> str:
    """Return `value`. Raises RequestError when the shell passed bytes that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} is not UTF-8 text", f"character {error.start + 1} is none", "convert it first"
        ) from error
    return value
