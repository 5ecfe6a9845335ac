"""Models in the folders of other programs: listed, and found by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from zinc.hub.errors import MissingModelError
from zinc.hub.folders import folders
from zinc.hub.local import list_models
from zinc.hub.resolve import resolve

REPO = "org/model-GGUF"


def make(path: Path, n_bytes: int = 10) -> Path:
    """Make a file of zeros."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(n_bytes))
    return path


def snapshot(root: Path, *names: str, commit: str = "ab" * 20) -> Path:
    """Make a snapshot of REPO in a cache of Hugging Face."""
    folder = root / "models--org--model-GGUF" / "snapshots" / commit
    for name in names:
        make(folder / name)
    return folder


def test_every_folder_is_listed(home):
    snapshot(home.hugging_face, "m-Q4_K_M.gguf", "mmproj-F16.gguf")
    make(home.llama_cpp / "org_other_m-Q8_0.gguf")
    make(home.lm_studio[0] / "pub" / "thing" / "t-Q6_K.gguf")
    listed = {(model.name, model.program) for model in list_models(home)}
    assert listed == {
        (f"{REPO}:Q4_K_M", "Hugging Face"),
        (str(home.llama_cpp / "org_other_m-Q8_0.gguf"), "llama.cpp"),
        ("pub/thing:Q6_K", "LM Studio"),
    }
    for model in list_models(home):
        assert resolve(model.name, home) == model.path


def test_no_folder_at_all(home):
    assert list_models(home) == []


def test_models_of_each_program_are_found_by_the_same_name(home):
    studio = make(home.lm_studio[1] / "org" / "model-GGUF" / "m-Q8_0.gguf")
    assert resolve(f"{REPO}:Q8_0", home) == studio
    flat = make(home.llama_cpp / "org_model-GGUF_m-Q4_0.gguf")
    assert resolve(f"{REPO}:Q4_0", home) == flat
    folder = snapshot(home.llama_cpp, "m-Q4_K_M.gguf")
    assert resolve(f"{REPO}:Q4_K_M", home) == folder / "m-Q4_K_M.gguf"
    assert resolve(REPO, home) == studio  # 8 bits, since the model is small


def test_a_missing_quantisation_names_those_that_are_here(home):
    snapshot(home.hugging_face, "m-Q4_K_M.gguf")
    with pytest.raises(MissingModelError, match="only Q4_K_M is here"):
        resolve(f"{REPO}:Q8_0", home)


def test_a_link_without_its_blob_is_no_model(home):
    folder = snapshot(home.hugging_face)
    folder.mkdir(parents=True)
    (folder / "m-Q4_K_M.gguf").symlink_to("../../blobs/gone")
    assert list_models(home) == []


def test_the_commit_of_the_branch_is_used(home):
    old, new = snapshot(home.hugging_face, "m-Q4_0.gguf"), "cd" * 20
    snapshot(home.hugging_face, "m-Q4_0.gguf", commit=new)
    ref = home.hugging_face / "models--org--model-GGUF" / "refs" / "main"
    ref.parent.mkdir()
    ref.write_text(old.name)
    assert resolve(f"{REPO}:Q4_0", home) == old / "m-Q4_0.gguf"
    ref.write_text(new)
    assert resolve(f"{REPO}:Q4_0", home).parent.name == new


@pytest.mark.parametrize(
    ("variables", "field", "expected"),
    [
        ({"HF_HUB_CACHE": "/a"}, "hugging_face", "/a"),
        ({"HF_HOME": "/b"}, "hugging_face", "/b/hub"),
        ({"HF_HOME": "/b", "HUGGINGFACE_HUB_CACHE": "/c"}, "hugging_face", "/c"),
        ({"HOME": "/h"}, "hugging_face", "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "hugging_face", "/x/huggingface/hub"),
        ({"LLAMA_CACHE": "/l"}, "llama_cpp", "/l"),
    ],
)
def test_variables_of_other_programs_move_their_folders(variables, field, expected):
    assert getattr(folders(variables), field) == Path(expected)
