"""Readers of the parsed options of a command: its model, its backend and how to load it.

Imports nothing heavy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zinc.cli.argtypes import UsageError
from zinc.cli.usage import SAMPLING
from zinc.core import env
from zinc.core.errors import RequestError

if TYPE_CHECKING:
    from zinc.engine.load.options import AdapterOption, LoadOptions
    from zinc.models.parts.context import RopeScaling
    from zinc.plan.device_map import DeviceMap


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


def rope_scaling(args: argparse.Namespace) -> RopeScaling | None:
    """Return the RoPE scaling of `add_rope`'s options, None for the file's. Raises RequestError."""
    given = (args.rope_scaling, args.rope_scale, args.yarn_orig_ctx)
    if not args.rope_always and all(value is None for value in given):
        return None
    from zinc.models.parts.context import RopeScaling

    return RopeScaling(*given, args.rope_always)


def lora(args: argparse.Namespace) -> tuple[AdapterOption, ...]:
    """Return the adapters of --lora. Raises RequestError for a scale that is not a number."""
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


def sampler_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_sampler` that are given, as arguments of SamplingParams."""
    names = [option.lstrip("-").replace("-", "_") for option, *_ in SAMPLING]
    given = {name: getattr(args, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


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
