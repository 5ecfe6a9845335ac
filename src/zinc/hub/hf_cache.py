"""The cache folder of Hugging Face, in its own layout, which other programs share.

    models--ORG--NAME/blobs/SHA256                    contents
    models--ORG--NAME/snapshots/COMMIT/PATH           links to blobs
    models--ORG--NAME/refs/REVISION                   the commit of a branch
    .locks/models--ORG--NAME/SHA256.lock              held by a download, also by huggingface_hub

Blobs are whole: a download gives one its name when it is complete. Links are made when all files of
a model are there.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from zinc.hub.errors import DownloadError
from zinc.hub.variants import RepoFile

_FOLDER = re.compile(r"models--(?P<org>.+?)--(?P<name>.+)")
_SAFE_NAME = re.compile(r"[^\x00-\x1f\\:*?\"<>|]+")


class HubCache:
    """The cache at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def repository(self, repo: str) -> Path:
        """Return the folder of the repository "org/name"."""
        return self.root / f"models--{repo.replace('/', '--')}"

    def blob(self, repo: str, file: RepoFile) -> Path:
        """Return the path of a file's content."""
        return self.repository(repo) / "blobs" / file.blob

    def target(self, repo: str, commit: str, file: RepoFile) -> Path:
        """Return the path that holds a file's bytes: its blob, or its place in the snapshot.

        The snapshot is used on systems without links. Raises DownloadError for an unsafe name.
        """
        pointer = self.pointer(repo, commit, file.path)
        is_plain = pointer.is_file() and not pointer.is_symlink()
        return pointer if is_plain else self.blob(repo, file)

    def lock(self, repo: str, file: RepoFile) -> Path:
        """Return the path of the lock of a file's content."""
        return self.root / ".locks" / self.repository(repo).name / f"{file.blob}.lock"

    def pointer(self, repo: str, commit: str, path: str) -> Path:
        """Return the path of a file of a commit. Raises DownloadError for an unsafe name."""
        parts = path.split("/")
        if any(part in ("", ".", "..") or not _SAFE_NAME.fullmatch(part) for part in parts):
            raise DownloadError(
                f"{repo} has a file with an unsafe name", repr(path), "choose another repository"
            )
        return self.repository(repo) / "snapshots" / commit / Path(*parts)

    def publish(
        self, repo: str, revision: str, commit: str, files: Iterable[RepoFile]
    ) -> list[Path]:
        """Link the files of a commit to their blobs; return their paths. Raises OSError."""
        paths = []
        for file in files:
            pointer = self.pointer(repo, commit, file.path)
            _link(self.blob(repo, file), pointer)
            paths.append(pointer)
        ref = self.repository(repo) / "refs" / revision
        if revision != commit:
            ref.parent.mkdir(parents=True, exist_ok=True)
            temporary = ref.with_name(f"{ref.name}.{uuid.uuid4().hex[:8]}.tmp")
            temporary.write_text(commit)
            os.replace(temporary, ref)
        return paths

    def repositories(self) -> Iterator[str]:
        """Yield the names of the repositories that have snapshots."""
        for folder in sorted(self.root.glob("models--*--*")):
            found = _FOLDER.fullmatch(folder.name)
            if found and (folder / "snapshots").is_dir():
                yield f"{found['org']}/{found['name']}"

    def snapshot(self, repo: str, revision: str) -> Path | None:
        """Return the folder of the newest commit of `revision` that is here, if any is.

        The commit of the branch is preferred, then the snapshot that was changed last.
        """
        folder = self.repository(repo)
        try:
            commit = (folder / "refs" / revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            commit = revision
        snapshots = folder / "snapshots"
        if re.fullmatch(r"[0-9a-f]{6,64}", commit) and (snapshots / commit).is_dir():
            return snapshots / commit
        if revision != "main" or not snapshots.is_dir():
            return None
        found = [each for each in snapshots.iterdir() if each.is_dir()]
        return max(found, key=lambda each: each.stat().st_mtime, default=None)


def _link(blob: Path, pointer: Path) -> None:
    """Make `pointer` a link to `blob`, or move the blob there on a system without links."""
    if pointer.exists() and not pointer.is_symlink():
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    temporary = pointer.with_name(f".{pointer.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.symlink_to(os.path.relpath(blob, pointer.parent))
    except (OSError, NotImplementedError):
        os.replace(blob, pointer)
    else:
        os.replace(temporary, pointer)
