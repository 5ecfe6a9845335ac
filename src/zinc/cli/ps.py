"""`zinc ps`: the models of a running server, and the memory that they take."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any
from urllib.parse import urlsplit

from zinc.cli import argtypes, usage
from zinc.cli.text import plain, size, table
from zinc.core.errors import RequestError

_MAX_ANSWER_BYTES = 16 << 20
_TIMEOUT_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        type=argtypes.address,
        default="http://127.0.0.1:8080",
        help="address of the server (default: %(default)s)",
    )
    parser.add_argument("--api-key", metavar="KEY", help="API key of the server")
    usage.add_json(parser)


def run(args: argparse.Namespace) -> int:
    models = _models(args.url, args.api_key)
    if args.json:
        json.dump(models, sys.stdout, indent=2)
        print()
        return 0
    rows = [
        (
            plain(str(model.get("id", "")), 60),
            plain(str(model.get("state", "")), 20),
            size(model.get("meta", {}).get("size", 0)),
            _size(model.get("meta", {}).get("memory_bytes")),
            str(model.get("meta", {}).get("n_ctx", "")),
            plain(str(model.get("meta", {}).get("backend", "")), 60),
        )
        for model in models
    ]
    print(table(("name", "state", "file |", "memory |", "context |", "backend"), rows))
    return 0


def _size(n_bytes: int | None) -> str:
    return "" if n_bytes is None else size(n_bytes)


def _models(url: str, api_key: str | None) -> list[dict[str, Any]]:
    """Return the entries of the server's /v1/models. Raises RequestError."""
    from zinc.hub.errors import DownloadError
    from zinc.hub.transport import StatusError, TransientError, Transport, read_all

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        response = Transport(headers, timeout_s=_TIMEOUT_S).open(f"{url}/v1/models")
        found = json.loads(read_all(response, _MAX_ANSWER_BYTES))["data"]
    except StatusError as error:
        hint = "give its key with {api_key}" if error.status == 401 else ""
        raise RequestError(f"{url} answers with status {error.status}", "", hint) from None
    except TransientError as error:
        hint = "start one with `zinc serve`, or name its address with {url}"
        # The transport names the host, as this sentence does.
        why = str(error).removeprefix(f"{urlsplit(url).netloc}: ")
        raise RequestError(f"no server answers at {url}", why, hint) from None
    except (ValueError, KeyError, TypeError, DownloadError) as error:
        hint = "name the address of `zinc serve` with {url}"
        raise RequestError(f"{url} is not a zinc server", str(error), hint) from None
    return [entry for entry in found if isinstance(entry, dict)]
