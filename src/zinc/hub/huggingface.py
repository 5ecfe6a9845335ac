"""Repositories of a Hugging Face style hub: their files, and error messages.

The optional dependency huggingface_hub finds the token, the endpoint (HF_ENDPOINT), offline mode
(HF_HUB_OFFLINE) and the list of files. The bytes come through `download.py`, which resumes and
checks them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import quote, urlsplit

from zinc.core.dataclass import dataclass
from zinc.core.errors import UnsupportedError
from zinc.core.extras import HUB, install_command
from zinc.hub.errors import DownloadError, ModelNameError
from zinc.hub.events import OnEvent, Waiting
from zinc.hub.names import HubName
from zinc.hub.transport import PAUSE_S, Patience, StatusError, TransientError, Transport, persist
from zinc.hub.variants import RepoFile

_HTTP_LIBRARIES = ("httpx", "httpcore", "requests")
_SIGN_IN = "run `hf auth login` or set HF_TOKEN"
_COMMIT = re.compile(r"[0-9a-f]{6,64}")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # a git object id or a SHA-256


@dataclass(frozen=True, slots=True)
class Repository:
    """The files of a repository at one commit."""

    name: HubName
    commit: str
    files: tuple[RepoFile, ...]


class Hub:
    """A hub: the one at `endpoint`, or the configured one.

    The token is sent to the configured hub only. pause_s: first pause after a failure.
    Raises UnsupportedError if huggingface_hub is not installed, DownloadError in offline mode.
    """

    def __init__(self, endpoint: str | None = None, *, pause_s: float = PAUSE_S) -> None:
        self._library = library = _library()
        configured: str = library.constants.ENDPOINT.rstrip("/")
        self.endpoint = (endpoint or configured).rstrip("/")
        self.host = urlsplit(self.endpoint).netloc
        if library.constants.HF_HUB_OFFLINE:
            raise DownloadError(
                "nothing can be downloaded",
                "HF_HUB_OFFLINE is set",
                "unset it, or use a local file",
            )
        token: str | None = library.get_token() if self.endpoint == configured else None
        self.has_token = token is not None
        self._api = library.HfApi(endpoint=self.endpoint, token=token or False)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.transport = Transport(headers, pause_s=pause_s)

    def url(self, repository: Repository, file: RepoFile) -> str:
        """Return the address of a file at the repository's commit."""
        path = quote(file.path)
        return f"{self.endpoint}/{repository.name.repo}/resolve/{repository.commit}/{path}"

    def repository(self, name: HubName, on_event: OnEvent) -> Repository:
        """Return the files of a repository.

        Raises DownloadError if it does not exist, or the hub refuses or cannot be reached.
        """
        patience = Patience(
            f"asking {self.host} for {name.repo}",
            self.transport.pause_s,
            lambda why, s: on_event(Waiting(name.repo, f"{why}; next try in {s:.0f} s")),
        )
        return persist(lambda: self._repository(name), patience, self.error(name))

    def _repository(self, name: HubName) -> Repository:
        errors = self._library.errors
        try:
            info = self._api.model_info(
                name.repo,
                revision=name.revision,
                files_metadata=True,
                timeout=self.transport.timeout_s,
            )
        except errors.HfHubHTTPError as error:
            response = error.response
            raise StatusError(
                response.status_code, dict(response.headers), response.text, str(response.url)
            ) from None
        except errors.HFValidationError as error:
            raise ModelNameError(
                f"{name.repo} is not a repository", str(error), "write it as org/name"
            ) from None
        except Exception as error:
            # The HTTP library differs between versions of huggingface_hub, and its errors with it.
            module = type(error).__module__
            if isinstance(error, (OSError, ValueError)) or module.startswith(_HTTP_LIBRARIES):
                raise TransientError(f"{self.host}: {_first_line(error)}") from error
            raise
        commit = info.sha or ""
        if not _COMMIT.fullmatch(commit):
            raise DownloadError(
                f"{self.endpoint} lists no commit of {name.repo}",
                "its answer is not that of a Hugging Face hub",
                "check HF_ENDPOINT",
            )
        return Repository(name, commit, tuple(_files(info.siblings or (), name.repo)))

    def no_gguf_files(self, name: HubName) -> ModelNameError:
        """Return the error for a repository without GGUF files."""
        return ModelNameError(
            f"{name.repo} has no GGUF files",
            "zinc runs models in that format",
            f"look for a repository with GGUF in its name: {self.endpoint}/models?search="
            f"{name.repo.partition('/')[2]}+gguf",
        )

    def error(self, name: HubName) -> Callable[[StatusError], DownloadError]:
        """Return a function that turns an error status about a repository into a sentence."""
        return lambda error: self._describe(name, error)

    def _describe(self, name: HubName, error: StatusError) -> DownloadError:
        repo, host = name.repo, self.host
        code, message = error.header("X-Error-Code"), error.header("X-Error-Message")
        sign_in = "" if self.has_token else _SIGN_IN
        if code == "GatedRepo" or (error.status == 403 and "gated" in message.lower()):
            return DownloadError(
                f"{repo} is gated",
                "its authors ask you to accept their conditions first",
                f"accept them at {self.endpoint}/{repo}" + (sign_in and f", then {sign_in}"),
            )
        if code == "RevisionNotFound":
            return DownloadError(
                f"{repo} has no revision {name.revision}",
                "",
                f"choose one at {self.endpoint}/{repo}/tree/main",
            )
        if code == "EntryNotFound":
            return DownloadError(
                f"a file of {repo} is gone", "the repository has changed meanwhile", "try again"
            )
        if error.status == 401 and self.has_token and code != "RepoNotFound":
            return DownloadError(
                f"{host} refuses your token", message or "it is wrong or has expired", _SIGN_IN
            )
        if error.status in (401, 404):
            return DownloadError(
                f"{host} has no repository {repo}",
                "the name is wrong, or the repository is private",
                "check the name" + (sign_in and f"; for a private one, {sign_in}"),
            )
        if error.status == 403:
            return DownloadError(
                f"{host} denies access to {repo}",
                message or "your token has no right to read it",
                f"create a token that may read it at {self.endpoint}/settings/tokens",
            )
        if error.status == 429:
            seconds = error.retry_after_s
            return DownloadError(
                f"{host} limits the number of requests",
                "" if seconds is None else f"it asks to wait {seconds:.0f} seconds",
                "try again later" + (sign_in and f"; with a token it allows more: {sign_in}"),
            )
        return DownloadError(
            f"{host} failed with status {error.status}", message, "try again in a few minutes"
        )


def _library() -> ModuleType:
    """Return the module huggingface_hub. Raises UnsupportedError if it is not installed."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise UnsupportedError(
            "zinc cannot download from Hugging Face",
            "the package huggingface_hub is not installed",
            f"install it with: {install_command(HUB)}",
        ) from error
    return huggingface_hub


def _files(siblings: Any, repo: str) -> list[RepoFile]:
    """Return the files of a listing. Raises DownloadError if one has no valid size or hash."""
    found = []
    for entry in siblings:
        lfs = entry.lfs
        sha256 = None if lfs is None else lfs.sha256
        n_bytes = entry.size if lfs is None else lfs.size
        if not str(entry.rfilename).lower().endswith(".gguf"):
            continue
        blob = sha256 or entry.blob_id
        if not isinstance(n_bytes, int) or n_bytes <= 0 or not _BLOB.fullmatch(blob or ""):
            raise DownloadError(
                f"the listing of {repo} is not valid",
                f"{entry.rfilename} has no size or no hash",
                "check HF_ENDPOINT",
            )
        found.append(RepoFile(entry.rfilename, n_bytes, blob, sha256))
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
