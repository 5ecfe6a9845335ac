"""Parser of model names, the text that a user writes for MODEL.

    ./qwen3.gguf  models/qwen3.gguf        a file
    unsloth/Qwen3-8B-GGUF[:Q4_K_M]         a repository of the Hugging Face hub [and quantisation]
    https://huggingface.co/org/repo/...    the same, or one file of it, as copied from a browser
    qwen3:8b  qwen3:8b-q8_0                a short name of the catalogue
    ollama:qwen3:8b                        a model of Ollama's registry

`parse` looks at the text, and checks whether it is an existing path. It asks no server.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from zinc.core.dataclass import dataclass
from zinc.hub.catalogue import CATALOGUE, ShortName
from zinc.hub.errors import ModelNameError
from zinc.hub.modelfile import named_like_modelfile

_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_REPOSITORY = re.compile(rf"(?P<repo>{_PART}/{_PART})(?::(?P<choice>.+))?")
_QUANTISATION = re.compile(r"[A-Za-z0-9][\w.-]*")
_HUB_HOSTS = ("hf.co/", "huggingface.co/", "www.huggingface.co/")
_REVISION = re.compile(r"\w[\w.-]*")
_SHORT = re.compile(r"[a-z0-9][a-z0-9.-]*(?::[A-Za-z0-9._-]+)?")
_WITH_SIZE = re.compile(r"[a-z][\w.-]*:\d+(\.\d+)?[bm](-[\w.-]+)?", re.IGNORECASE)
_OLLAMA = "ollama:"
_OLLAMA_REGISTRY = "https://registry.ollama.ai"
DEFAULT_REVISION = "main"
NAME_FORMS = (
    "name a .gguf file, org/repo[:quantisation], a URL of a hub, a short name such as qwen3:8b, or "
    "ollama:name[:tag]"
)


@dataclass(frozen=True, slots=True)
class FileName:
    """A model file on this machine, which may not exist."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of a Hugging Face style hub.

    quantisation: label such as "Q4_K_M", in any case; None takes the best that fits.
    file: path of one file in the repository, instead of a quantisation.
    endpoint: address of the hub; None is the configured one (HF_ENDPOINT).
    """

    repo: str
    quantisation: str | None = None
    file: str | None = None
    revision: str = DEFAULT_REVISION
    endpoint: str | None = None

    def __str__(self) -> str:
        choice = self.file or self.quantisation
        return f"{self.repo}:{choice}" if choice else self.repo


@dataclass(frozen=True, slots=True)
class OllamaName:
    """A model of a registry that speaks Ollama's protocol.

    model: namespace and name, such as "library/qwen3".
    """

    model: str
    tag: str = "latest"
    registry: str = _OLLAMA_REGISTRY

    @property
    def host(self) -> str:
        """Host of the registry, with its port, as in the folders of Ollama."""
        return urlsplit(self.registry).netloc

    def __str__(self) -> str:
        model = self.model.removeprefix("library/")
        host = "" if self.registry == _OLLAMA_REGISTRY else f"{self.host}/"
        return f"{_OLLAMA}{host}{model}:{self.tag}"


ModelName: TypeAlias = FileName | HubName | OllamaName


def parse(text: str) -> ModelName:
    """Return the model that `text` names. Raises ModelNameError if it has none of the forms.

    A file that exists takes precedence over every other form.
    """
    if not text or "\x00" in text:
        raise ModelNameError(
            f"{text!r} is not a model", "a name must not be empty or contain NUL", NAME_FORMS
        )
    path = Path(os.path.expanduser(text))  # unlike Path.expanduser, it accepts unknown users
    if _exists(path):
        return FileName(path)
    if text.startswith(_OLLAMA):
        return _ollama(text)
    if "://" in text:
        return _url(text)
    if text.startswith(_HUB_HOSTS):
        return _hub_path(text, text.partition("/")[2], None)
    if _is_written_as_path(text):
        return FileName(path)
    if found := _REPOSITORY.fullmatch(text):
        return _repository(found["repo"], found["choice"])
    if _SHORT.fullmatch(text.lower()):
        return short_name(text)
    raise ModelNameError(f"{text} is not a model", "it is neither a file nor a name", NAME_FORMS)


def registry_name(text: str) -> str:
    """Return a model name from an Ollama client or Modelfile in zinc's notation.

    A name that has none of zinc's forms is one of Ollama's registry.
    """
    try:
        parse(text)
    except ModelNameError:
        return f"{_OLLAMA}{text}"
    return text


def is_model_name(word: str) -> bool:
    """Return whether the first word of `zinc run` is a model rather than a prompt.

    A model has no blanks, and ends in .gguf, contains a path separator, begins with "ollama:", is a
    short name of the catalogue or written like one with a size, or is called like a Modelfile.
    """
    if any(map(str.isspace, word)):
        return False
    separators = {os.sep, os.altsep, "/"} - {None}
    return (
        word.lower().endswith(".gguf")
        or any(each in word for each in separators if each)
        or word.startswith(_OLLAMA)
        or named_like_modelfile(word)
        or CATALOGUE.find(word) is not None
        or _WITH_SIZE.fullmatch(word) is not None
    )


def short_name(text: str) -> HubName:
    """Return the repository of a short name of the catalogue. Raises ModelNameError."""
    found = CATALOGUE.find(text)
    if found is not None:
        return _from_catalogue(found)
    near = CATALOGUE.nearest(text)
    raise ModelNameError(
        f"there is no model {text}",
        "no file and no short name in the catalogue has this name",
        f"similar names are {', '.join(near)}"
        if near
        else "`zinc list --catalogue` prints the short names; org/repo names any repository",
    )


def _from_catalogue(found: ShortName) -> HubName:
    return HubName(found.repo, found.quantisation)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for a file
        return False


def _is_written_as_path(text: str) -> bool:
    """Return whether `text` can only be a path: it ends in .gguf, or begins as paths do."""
    return (
        text.startswith((".", "/", "~", "\\"))
        or (text.lower().endswith(".gguf") and ":" not in text)
        or "\\" in text
        or text.partition(":")[0].count("/") > 1
    )


def _repository(repo: str, choice: str | None, endpoint: str | None = None) -> HubName:
    if choice is None:
        return HubName(repo, None, None, DEFAULT_REVISION, endpoint)
    if choice.lower().endswith(".gguf"):
        return HubName(repo, None, _file_path(choice), DEFAULT_REVISION, endpoint)
    if not _QUANTISATION.fullmatch(choice):
        raise ModelNameError(
            f"{repo}:{choice} is not a model",
            f"{choice!r} is neither a quantisation such as Q4_K_M nor a .gguf file",
            f"`zinc show {repo}` lists the quantisations",
        )
    return HubName(repo, choice, None, DEFAULT_REVISION, endpoint)


def _file_path(path: str) -> str:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path:
        raise ModelNameError(
            f"{path} is not a file of a repository",
            "its path has an empty part, '.', '..' or a backslash",
            "write FOLDER/FILE.gguf",
        )
    return path


def _url(text: str) -> HubName:
    """Return the repository, or its file, at a URL. Raises ModelNameError."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname or url.username:
        raise ModelNameError(
            f"{text} is not a model",
            "a URL must begin with https:// and must not contain a user name",
            "copy the address of the repository from the browser",
        )
    endpoint: str | None = f"{url.scheme}://{url.netloc}"
    if f"{url.netloc}/" in _HUB_HOSTS:
        endpoint = None
    return _hub_path(text, unquote(url.path).strip("/"), endpoint)


def _hub_path(text: str, path: str, endpoint: str | None) -> HubName:
    """Return the repository at a path such as org/repo/resolve/main/model.gguf."""
    parts = path.strip("/").split("/")
    if len(parts) == 2 and (found := _REPOSITORY.fullmatch("/".join(parts))):
        return _repository(found["repo"], found["choice"], endpoint=endpoint)
    repo = "/".join(parts[:2])
    if len(parts) >= 4 and _REPOSITORY.fullmatch(repo) and _REVISION.fullmatch(parts[3]):
        revision, file = parts[3], "/".join(parts[4:])
        if parts[2] == "tree" and not file:
            return HubName(repo, None, None, revision, endpoint)
        if parts[2] in ("resolve", "blob") and file.lower().endswith(".gguf"):
            return HubName(repo, None, _file_path(file), revision, endpoint)
    raise ModelNameError(
        f"{text} is not a model",
        "the URL names neither a repository nor a .gguf file of one",
        "copy the address of the repository, or of the file's download button",
    )


def _ollama(text: str) -> OllamaName:
    """Return the model of ollama:[[host/]namespace/]name[:tag]. Raises ModelNameError."""
    rest = text.removeprefix(_OLLAMA)
    registry = _OLLAMA_REGISTRY
    if "://" in rest:
        scheme, _, rest = rest.partition("://")
        host, _, rest = rest.partition("/")
        registry = f"{scheme}://{host}"
    elif rest.count("/") == 2:
        host, _, rest = rest.partition("/")
        registry = f"https://{host}"
    model, _, tag = rest.partition(":")
    if "/" not in model:
        model = f"library/{model}"
    valid = re.fullmatch(rf"{_PART}/{_PART}", model) and _QUANTISATION.fullmatch(tag or "latest")
    if not valid or not re.fullmatch(r"https?://[\w.-]+(:\d+)?", registry):
        raise ModelNameError(
            f"{text} is not a model",
            "it is not a valid name of Ollama's registry",
            "write ollama:name or ollama:name:tag",
        )
    return OllamaName(model, tag or "latest", registry)
