"""The GGUF files of a repository, grouped into the variants that a user can choose from.

A variant is one quantisation of the model: one file, or all parts of a split one. Beside the
variants a repository may hold `mmproj-*` files (an image encoder) and `mtp-*` files (a draft model
for speculation), which belong to every variant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from zinc.core.dataclass import dataclass
from zinc.hub.errors import ModelNameError

# A label as it ends a file name: UD-Q4_K_XL, IQ4_XS, Q8_0, MXFP4_MOE, BF16.
_LABEL = re.compile(
    r"(?:^|[-._])((?:UD[-_])?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))$",
    re.IGNORECASE,
)
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_PROJECTOR = re.compile(r"(?:.*[-_.])?mmproj(?:[-_.].*)?", re.IGNORECASE)
_DRAFT = re.compile(r"mtp[-_.].*", re.IGNORECASE)
# Preferred types of an image encoder.
_PROJECTOR_LABELS = ("F16", "BF16", "Q8_0")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository.

    path: with folders, "/" between them. blob: name of its content in the cache, the SHA-256 if the
    hub states one. sha256: None if the hub does not state it.
    """

    path: str
    n_bytes: int
    blob: str
    sha256: str | None

    @property
    def name(self) -> str:
        """The file name without folders and without .gguf."""
        return self.path.rpartition("/")[2].removesuffix(".gguf")


@dataclass(frozen=True, slots=True)
class Variant:
    """A quantisation of a model: `label` such as "Q4_K_M" and its files, the parts in order."""

    label: str
    files: tuple[RepoFile, ...]

    @property
    def n_bytes(self) -> int:
        """Size of all parts together."""
        return sum(file.n_bytes for file in self.files)


def label_of(file_name: str) -> str:
    """Return the quantisation at the end of a file name, in upper case; "" if it has none."""
    stem = file_name.removesuffix(".gguf")
    if part := _PART.fullmatch(stem):
        stem = part["stem"]
    found = _LABEL.search(stem)
    return found[1].upper().replace("UD_", "UD-") if found else ""


def is_draft(name: str) -> bool:
    """Return whether a file of this name, without .gguf, has NextN blocks that draft tokens."""
    return _DRAFT.fullmatch(name) is not None


def is_sibling(path: str) -> bool:
    """Return whether a GGUF file is an image encoder or a draft model, not the model."""
    name = path.rpartition("/")[2].removesuffix(".gguf")
    return is_draft(name) or _PROJECTOR.fullmatch(name) is not None


def variants_of(files: Iterable[RepoFile]) -> list[Variant]:
    """Return the variants among the files of a repository, smallest first.

    A split file whose parts are not all there is left out.
    """
    groups: dict[str, dict[int, RepoFile]] = {}
    counts: dict[str, int] = {}
    for file in files:
        if not file.path.lower().endswith(".gguf") or is_sibling(file.path) or _is_imatrix(file):
            continue
        stem = file.path.removesuffix(".gguf")
        part = _PART.fullmatch(stem)
        key = part["stem"] if part else stem
        groups.setdefault(key, {})[int(part["number"]) if part else 1] = file
        counts[key] = int(part["count"]) if part else 1
    found = [
        Variant(label_of(key) or key.rpartition("/")[2], tuple(parts[i] for i in sorted(parts)))
        for key, parts in groups.items()
        if sorted(parts) == list(range(1, counts[key] + 1))
    ]
    return sorted(found, key=lambda variant: variant.n_bytes)


def siblings_of(files: Iterable[RepoFile]) -> list[RepoFile]:
    """Return the image encoder and the draft model of a repository, one file each at most."""
    models = [file for file in files if file.path.lower().endswith(".gguf")]
    projectors = [file for file in models if _PROJECTOR.fullmatch(file.name)]
    drafts = [file for file in models if is_draft(file.name)]
    projectors.sort(key=_projector_rank)
    drafts.sort(key=lambda file: file.n_bytes)
    return [*projectors[:1], *drafts[:1]]


def select(variants: Sequence[Variant], wanted: str, repo: str) -> Variant:
    """Return the variant called `wanted`, in any case. Raises ModelNameError if there is none.

    "Q4_K_M" also finds UD-Q4_K_M, if the repository has that one alone.
    """
    asked = wanted.upper()
    for variant in sorted(variants, key=lambda variant: variant.label.startswith("UD-")):
        if asked in (variant.label.upper(), variant.label.upper().removeprefix("UD-")):
            return variant
    labels = ", ".join(variant.label for variant in variants)
    raise ModelNameError(
        f"{repo} has no {wanted}", f"its quantisations are {labels}", "name one of these"
    )


def _projector_rank(file: RepoFile) -> int:
    label = label_of(file.path)
    if label in _PROJECTOR_LABELS:
        return _PROJECTOR_LABELS.index(label)
    return len(_PROJECTOR_LABELS)


def _is_imatrix(file: RepoFile) -> bool:
    return "imatrix" in file.path.rpartition("/")[2].lower()
