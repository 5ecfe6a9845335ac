"""Quantisations of a repository: found in file names, selected by name, chosen by size."""

from __future__ import annotations

import pytest

from zinc.core.errors import MemoryLimitError
from zinc.hub.choice import Fit, choose
from zinc.hub.errors import ModelNameError
from zinc.hub.variants import RepoFile, label_of, select, siblings_of, variants_of


def files(**sizes: int) -> list[RepoFile]:
    """Return files model-LABEL.gguf of the given sizes."""
    return [file(f"model-{label.replace('UD_', 'UD-')}.gguf", n) for label, n in sizes.items()]


def file(path: str, n_bytes: int = 1) -> RepoFile:
    return RepoFile(path, n_bytes, "ab", None)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("model.IQ4_XS.gguf", "IQ4_XS"),
        ("model-BF16-00001-of-00002.gguf", "BF16"),
        ("Llama-3.2-1B-Instruct-f16.gguf", "F16"),
        ("ggml-model-q8_0.gguf", "Q8_0"),
        ("Qwen3-Q8-notes.gguf", ""),
        ("model.gguf", ""),
    ],
)
def test_the_label_is_the_end_of_the_name(name, label):
    assert label_of(name) == label


def test_parts_make_one_variant_and_incomplete_ones_make_none():
    found = variants_of(
        [
            *(file(f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf", 10) for i in (2, 1, 3)),
            *(file(f"m-BF16-0000{i}-of-00003.gguf", 10) for i in (1, 3)),
            file("m-Q2_K.gguf", 5),
            file("mmproj-F16.gguf"),
            file("mtp-m-Q8_0.gguf"),
            file("vision/m-mmproj-f16.gguf"),
            file("README.md"),
            file("imatrix_unsloth.gguf"),
        ]
    )
    assert [(variant.label, variant.n_bytes) for variant in found] == [("Q2_K", 5), ("Q8_0", 30)]
    assert found[1].files[0].path.endswith("00001-of-00003.gguf")


def test_one_image_encoder_and_one_draft_model_belong_to_a_model():
    listed = [file(f"mmproj-{t}.gguf") for t in ("F32", "BF16", "F16")]
    listed += [file("mtp-m-Q8_0.gguf", 2), file("mtp-m-Q4_0.gguf", 1), file("m-Q4_0.gguf")]
    assert [each.path for each in siblings_of(listed)] == ["mmproj-F16.gguf", "mtp-m-Q4_0.gguf"]


def test_a_model_with_mtp_in_its_name_is_a_model():
    listed = [file("Qwen3.6-27B-MTP-Q4_K_M.gguf"), file("mtp-Qwen3.6-27B.gguf")]
    assert [variant.label for variant in variants_of(listed)] == ["Q4_K_M"]


def test_selection_ignores_case_and_the_mark_of_dynamic_quantisations():
    found = variants_of(files(UD_Q4_K_XL=4, Q4_K_M=3))
    assert select(found, "q4_k_m", "r").label == "Q4_K_M"
    assert select(found, "Q4_K_XL", "r").label == "UD-Q4_K_XL"
    with pytest.raises(ModelNameError, match="its quantisations are Q4_K_M, UD-Q4_K_XL"):
        select(found, "Q5_0", "r")


GB = 10**9


@pytest.mark.parametrize(
    ("sizes", "room", "label"),
    [
        ({"Q4_K_M": 5 * GB, "Q8_0": 9 * GB, "BF16": 16 * GB}, 64 * GB, "Q4_K_M"),
        ({"Q4_K_M": 5 * GB, "UD_Q4_K_XL": 5 * GB}, 64 * GB, "UD-Q4_K_XL"),
        ({"Q4_K_M": 5 * GB, "Q3_K_M": 4 * GB, "Q2_K": 3 * GB}, 4 * GB, "Q3_K_M"),
        ({"Q4_K_M": GB // 2, "Q8_0": GB}, 64 * GB, "Q8_0"),
        ({"Q4_K_M": GB // 2, "Q8_0": GB}, 0.7 * GB, "Q4_K_M"),
        ({"Q6_K": 7 * GB, "BF16": 16 * GB}, 64 * GB, "Q6_K"),
        ({"mxfp4": 12 * GB}, 64 * GB, "MXFP4"),
        ({"strange": 2 * GB, "odd": 1 * GB}, 64 * GB, "model-odd"),
    ],
)
def test_the_choice_of_a_quantisation(sizes, room, label):
    variants = variants_of(files(**sizes))
    chosen = choose(variants, lambda variant: Fit(variant.n_bytes, int(room), 4096), "r")
    assert chosen.variant.label == label
    assert "4,096 tokens" in chosen.why


def test_nothing_fits():
    variants = variants_of(files(Q4_K_M=5 * GB, Q2_K=3 * GB))
    with pytest.raises(
        MemoryLimitError, match=r"Q2_K needs 3.0 GB .* 1.0 GB are available.*r:Q2_K"
    ):
        choose(variants, lambda variant: Fit(variant.n_bytes, GB, 4096), "r")
