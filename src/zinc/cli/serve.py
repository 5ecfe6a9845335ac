"""`zinc serve`: the HTTP server. Its dependencies are imported when it runs."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zinc.cli import argtypes, parsed, usage
from zinc.cli.interrupt import StopSignals
from zinc.core.errors import RequestError, UnsupportedError
from zinc.core.extras import SERVER, install_command

if TYPE_CHECKING:
    from zinc.server.config import ModelSource, ServerConfig

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# New objects that start a garbage collection. One request with 64 texts creates more than Python's
# default of 700.
_COLLECTED_OBJECTS = 10_000
_NEEDED = ("starlette", "uvicorn", "pydantic")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        metavar="[NAME=]MODEL",
        nargs="*",
        help="a .gguf file or a name such as qwen3:8b (docs/models.md), and its name for clients "
        "(default: the file name, or the name as given). The first is the default model of "
        "requests; others are loaded when a request names them (default: the embedded demo model)",
    )
    parser.add_argument(
        "--pull",
        action="store_true",
        help="download models that are not on this machine, and let clients add and delete models",
    )
    parser.add_argument(
        "-m",
        "--model",
        dest="more_models",
        action="append",
        default=[],
        metavar="[NAME=]MODEL",
        help="same as the positional [NAME=]MODEL; may be repeated",
    )
    parser.add_argument("-a", "--alias", metavar="NAME", help="name of the first model for clients")
    usage.add_backend(parser)
    usage.add_cache(parser)
    usage.add_speculate(parser)
    usage.add_lora(parser)
    usage.add_sampler(parser, "sampling (defaults for requests)")
    _add_prefix_cache(parser)
    _add_network(parser)
    _add_limits(parser)
    _add_batches(parser)
    parser.add_argument(
        "--pooling",
        choices=("mean", "cls", "last", "none"),
        help="pooling of embeddings; none returns a row per token, on /embedding only (default: "
        "that of the model file, else mean)",
    )
    usage.add_chat_template(parser)
    parser.add_argument(
        "--ignore-unknown-fields",
        action="store_true",
        help="ignore unknown fields of requests instead of refusing them",
    )
    parser.add_argument(
        "--strict-model-names",
        action="store_true",
        help="return 404 for unknown model names, even if the server has only one model (default: "
        "a single model answers for any name)",
    )
    parser.add_argument(
        "--log-json", action="store_true", help="log requests as JSON, one object per line"
    )


def _add_prefix_cache(parser: argparse.ArgumentParser) -> None:
    cache = parser.add_argument_group("prefix cache")
    cache.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="also store the prefix cache in this folder, so that it survives restarts; the folder "
        "then contains the text of conversations",
    )
    cache.add_argument(
        "--cache-size",
        type=size,
        metavar="SIZE",
        help="maximum memory for the prefix cache (default: the unused part of the KV cache)",
    )
    cache.add_argument(
        "--swap-size",
        type=size,
        metavar="SIZE",
        help="memory for the state of preempted requests; requests without it are recomputed "
        "(default: a sixteenth of the free memory)",
    )
    cache.add_argument(
        "--no-prefix-cache", action="store_true", help="process every prompt from its first token"
    )
    cache.add_argument(
        "--share-cache",
        action="store_true",
        help="share the cache between API keys; a client can then find out what another one has "
        "sent (default: each key has its own cache)",
    )


def _add_network(parser: argparse.ArgumentParser) -> None:
    network = parser.add_argument_group("network")
    network.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    network.add_argument(
        "--port",
        type=_port,
        default=8080,
        help="port to listen on; 0 chooses a free one (default: %(default)s)",
    )
    network.add_argument("--ollama", action="store_true", help="also listen on Ollama's port 11434")
    network.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="API key that clients must send; may be repeated",
    )
    network.add_argument("--api-key-file", metavar="FILE", help="file with one API key per line")
    network.add_argument(
        "--allow-public",
        action="store_true",
        help="allow serving without an API key on an address that other machines can reach",
    )
    network.add_argument(
        "--allow-origin",
        "--cors-origin",
        dest="allow_origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web page or browser extension that may call the server; SCHEME://* allows a whole "
        "scheme, * all (default: pages of this machine, and apps such as VS Code)",
    )
    network.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional host name under which clients may call the server without an API key",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits")
    waiting = "maximum number of waiting requests"
    usage.add_number(limits, "--max-waiting", argtypes.natural, 64, waiting)
    limits.add_argument(
        "--max-body",
        type=size,
        default=32 << 20,
        metavar="SIZE",
        help="maximum size of a request, such as 500K or 32M (default: 32M)",
    )
    limits.add_argument(
        "--max-body-memory",
        type=size,
        metavar="SIZE",
        help="memory for the bodies of all requests together (default: 256M, or four times "
        "--max-body if that is more)",
    )
    connected = "maximum number of simultaneous connections"
    usage.add_number(limits, "--max-connections", argtypes.count, 512, connected)
    limits.add_argument(
        "--ttl",
        type=argtypes.quantity,
        metavar="SECONDS",
        help="unload a model that has been idle for this time (default: never)",
    )
    limits.add_argument(
        "--memory-budget",
        type=size,
        metavar="SIZE",
        help="memory for all loaded models, such as 12G; idle models are unloaded to make room "
        "(default: no limit)",
    )
    grace = "time for running answers to finish on shutdown"
    usage.add_number(limits, "--grace", argtypes.quantity, 10.0, grace, "SECONDS")


def _add_batches(parser: argparse.ArgumentParser) -> None:
    batches = parser.add_argument_group("batches", "see docs/batch.md")
    batches.add_argument(
        "--batch-dir",
        metavar="DIR",
        help="accept batches, and store their files in this folder, which then contains requests "
        "and answers (default: batches are refused)",
    )
    batches.add_argument(
        "--batch-size",
        type=size,
        default=4 << 30,
        metavar="SIZE",
        help="maximum size of all files in it (default: 4G)",
    )
    rows = "maximum number of rows of a batch that run at a time, at the lowest priority"
    usage.add_number(batches, "--batch-in-flight", argtypes.count, 8, rows)


def run(args: argparse.Namespace) -> int:
    check_installed("serve")
    with StopSignals() as stop:
        try:
            has_ended = _serve(args, stop)
        except BaseException:
            if not stop.requested:
                raise
            has_ended = False
    if not has_ended:
        # A thread that comes back from native code while the interpreter ends would abort it.
        sys.stderr.flush()
        os._exit(0)
    return 0


def _serve(args: argparse.Namespace, stop: StopSignals) -> bool:
    """Serve until a signal arrives, which may be at any moment of the start.

    Returns False if a thread still loads a model. Raises as `zinc.server.main.serve` does, and
    KeyboardInterrupt before the server handles signals itself.
    """
    from zinc.server.main import serve

    def loaded(url: str) -> None:
        print(f"zinc: serving on {url}", file=sys.stderr, flush=True)

    settings = config(args)
    # Modules live as long as the process. Full collections take longer if they search them too,
    # and they stop all requests.
    gc.freeze()
    gc.set_threshold(_COLLECTED_OBJECTS)
    return stop.requested or serve(settings, loaded)


def check_installed(command: str) -> None:
    """Raise UnsupportedError if a package is missing that the server, and `command`, needs."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"`zinc {command}` needs {', '.join(missing)}",
            "the server is an optional part of zinc",
            f"install it with: {install_command(SERVER)}",
        )


def config(args: argparse.Namespace) -> ServerConfig:
    """Return the server's configuration. Raises RequestError, FormatError."""
    from zinc.cli import loading, text
    from zinc.server.config import ServerConfig

    loading.sampling_params(args)  # raises an error that names the option
    keys = list(args.api_key)
    if args.api_key_file is not None:
        keys += _keys_in(text.read_file(args.api_key_file), args.api_key_file)
    return ServerConfig(
        models=_sources(args),
        load=parsed.load_options(
            args,
            prefix_cache=not args.no_prefix_cache,
            cache_bytes=args.cache_size,
            swap_bytes=args.swap_size,
            cache_dir=_cache_dir(args),
            pooling=args.pooling,
            draft=None if args.draft is None else _model_file(args.draft, args.pull),
        ),
        sampling=parsed.sampler_arguments(args),
        host=args.host,
        port=args.port,
        ollama=args.ollama,
        allow_pull=args.pull,
        api_keys=tuple(keys),
        origins=tuple(args.allow_origin),
        hosts=tuple(args.allow_host),
        allow_public=args.allow_public,
        share_cache=args.share_cache,
        ignore_unknown_fields=args.ignore_unknown_fields,
        strict_model_names=args.strict_model_names,
        max_waiting=args.max_waiting,
        max_body_bytes=args.max_body,
        max_body_memory_bytes=args.max_body_memory,
        max_connections=args.max_connections,
        batch_dir=None if args.batch_dir is None else Path(args.batch_dir).expanduser(),
        batch_bytes=args.batch_size,
        batch_in_flight=args.batch_in_flight,
        ttl_s=args.ttl,
        memory_budget_bytes=args.memory_budget,
        grace_s=args.grace,
        json_log=args.log_json,
    )


def _keys_in(text: str, name: str) -> list[str]:
    """Return the API keys of a key file, one on each line. Raises RequestError if it has none."""
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise RequestError(
            f"the key file {name} has no keys",
            "without a key the server would be open to everybody who can connect",
            "write one key per line, or leave out --api-key-file",
        )
    return keys


def _cache_dir(args: argparse.Namespace) -> Path | None:
    """Return the folder for the prefix cache. Raises RequestError if it cannot be written."""
    from zinc.kv.disk import check_folder

    if args.cache_dir is None:
        return None
    folder = Path(args.cache_dir).expanduser()
    if not args.no_prefix_cache:
        check_folder(folder)
    return folder


def _sources(args: argparse.Namespace) -> tuple[ModelSource, ...]:
    """Return the models to serve; the embedded one if none is named."""
    found = [_source(each, args.pull) for each in (*args.models, *args.more_models)] or [
        _embedded(args)
    ]
    if args.alias is not None:
        found[0] = replace(found[0], name=args.alias)
    return tuple(found)


def _source(text: str, pull: bool) -> ModelSource:
    """Return the model of [NAME=]MODEL. pull: download it if it is missing. Raises a ZincError."""
    from zinc.engine.load.settings import settings_of
    from zinc.server.config import ModelSource

    name, model = split_name(text)
    return ModelSource(name, _model_file(model, pull), settings_of(model))


def split_name(text: str) -> tuple[str, str]:
    """Return the name for clients, and the MODEL, of [NAME=]MODEL."""
    name, mark, model = text.partition("=")
    # A path may contain "=". A name contains no "/", and an existing file of that name wins.
    if not mark or not name or not model or "/" in name or Path(text).exists():
        return client_name(text), text
    return name, model


def client_name(model: str) -> str:
    """Return the name of a served MODEL for clients: the file name of a path, else as given."""
    if model.lower().endswith(".gguf") or os.path.exists(os.path.expanduser(model)):
        return Path(model).name.removesuffix(".gguf")
    return model


def _model_file(model: str, pull: bool) -> Path:
    from zinc.engine.load.files import resolve_model
    from zinc.hub.errors import MissingModelError

    try:
        return resolve_model(model)
    except MissingModelError as error:
        if not pull:
            hint = f"run `zinc pull {error.name}`, or serve with --pull"
            raise MissingModelError(error.name, error.why, hint) from None
        from zinc.cli import downloads

        return downloads.pull(error.name)


def _embedded(args: argparse.Namespace) -> ModelSource:
    from zinc.server.config import ModelSource

    args.model = None
    return ModelSource(parsed.model_path(args).stem, None)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, a number from 0 to 65535")
    return int(text)


def size(text: str) -> int:
    """Return the bytes of a size such as 500K or 1.5G."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    n_bytes = round(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if n_bytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500K, 32M or 12G")
    return n_bytes
