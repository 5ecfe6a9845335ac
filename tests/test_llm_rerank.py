"""Scores of rerankers, compared with transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data.encoder_texts import DOCUMENTS, QUERY
from models.harness import ENCODERS, FIXTURES, expected, rewrite
from present import computing

from zinc import LLM, Tokenizer
from zinc.core.errors import ModelError, RequestError, TextTooLongError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.llm.answers import ReadoutTask, ranked
from zinc.models import load

RERANKER = ENCODERS / "reranker.gguf"
BACKENDS = ["ref", *computing()]
TOLERANCE = 1e-4


@pytest.mark.parametrize(("name", "tolerance"), [("reranker", 1e-4), ("modernreranker", 1e-3)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_are_those_of_transformers(backend: str, name: str, tolerance: float) -> None:
    path = ENCODERS / f"{name}.gguf"
    with np.load(path.with_suffix(".npz")) as data, LLM(path, backend=backend) as llm:
        cuts = np.cumsum(data["lengths"])[:-1]
        for document, ids in zip(DOCUMENTS, np.split(data["tokens"], cuts), strict=True):
            assert llm.encode_pair(QUERY, document) == ids.tolist()
        found = llm.rerank(QUERY, DOCUMENTS)
        assert [each.index for each in found] == np.argsort(-data["scores"]).tolist()
        for each in found:
            assert abs(each.score - data["scores"][each.index]) <= tolerance
        assert np.ptp(data["scores"]) > 50 * tolerance


@pytest.fixture(scope="module")
def llm():
    with LLM(RERANKER, backend="cpu", threads=2) as model:
        yield model


def test_the_best_documents_come_first(llm) -> None:
    everything = llm.rerank(QUERY, DOCUMENTS)
    assert llm.rerank(QUERY, DOCUMENTS, top_n=2) == everything[:2]
    assert llm.rerank(QUERY, DOCUMENTS, top_n=99) == everything
    assert llm.rerank(QUERY, []) == []
    assert [each.index for each in ranked([1.0, 3.0, 1.0])] == [1, 0, 2]
    with pytest.raises(RequestError, match="top_n"):
        llm.rerank(QUERY, DOCUMENTS, top_n=0)
    with pytest.raises(TextTooLongError):
        llm.rerank(QUERY, ["fox " * 200])


def test_a_reranker_does_not_chat_or_embed(llm) -> None:
    for ask in (
        lambda: llm.generate("fox"),
        lambda: llm.chat([{"role": "user", "content": "fox"}]),
        lambda: llm.logits([5]),
        lambda: llm.embed("fox"),
    ):
        with pytest.raises(UnsupportedError, match="it is a reranker, which scores documents"):
            ask()


@pytest.mark.parametrize("path", [ENCODERS / "bert.gguf", FIXTURES / "granite.gguf"])
def test_other_models_do_not_rank(path: Path) -> None:
    refused = pytest.raises(UnsupportedError, match="cannot rank documents")
    with LLM(path, backend="cpu", threads=2) as other, refused:
        other.rerank("fox", ["dog"])


def test_a_head_of_one_matrix_gives_its_only_row(tmp_path) -> None:
    """As Jina Reranker 1, whose head is `cls` with one row, and a tanh."""
    matrix = np.linspace(-1, 1, 32, dtype=np.float32)[None]
    nothing = dict.fromkeys(("cls.output.weight", "cls.output.bias"))
    one = nothing | {"cls.weight": matrix, "cls.bias": np.array([0.25], np.float32)}
    keys = {"bert.pooling_type": 4}
    path = rewrite(RERANKER, tmp_path / "a.gguf", tensors=one, metadata=keys)
    with LLM(path, backend="ref") as llm:
        (found,) = llm.rerank(QUERY, DOCUMENTS[:1])
    with np.load(ENCODERS / "reranker.npz") as data:
        assert abs(found.score - np.tanh(data["hidden"][0] @ matrix[0] + 0.25)) <= TOLERANCE


def test_the_head_of_modernbert_reads_the_row_that_the_file_names(tmp_path) -> None:
    path, key = ENCODERS / "modernreranker.gguf", "modern-bert.classifier.pooling_type"
    scores = {}
    for number in (1, 2, None):
        metadata = {} if number is None else {key: number}
        drop = [key] if number is None else []
        other = rewrite(path, tmp_path / "a.gguf", metadata=metadata, drop=drop)
        with LLM(other, backend="ref") as llm:
            scores[number] = llm.rerank(QUERY, DOCUMENTS[:1])[0].score
    assert scores[1] == scores[None] != scores[2]
    wrong = rewrite(path, tmp_path / "b.gguf", metadata={key: 7})
    with pytest.raises(UnsupportedError, match="pooling type 7"):
        LLM(wrong, backend="ref")


def test_a_damaged_head_is_refused(tmp_path) -> None:
    wrong = np.ones((1, 16), np.float32)
    path = rewrite(RERANKER, tmp_path / "a.gguf", tensors={"cls.output.weight": wrong})
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match=r"cls\.output\.weight"):
        load(file)
    nothing = dict.fromkeys(("cls.output.weight", "cls.output.bias"))
    nothing |= {"cls.weight": None, "cls.bias": None}
    path = rewrite(
        RERANKER, tmp_path / "b.gguf", tensors=nothing, metadata={"bert.pooling_type": 4}
    )
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match="a reranker needs"):
        load(file)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decoder_gives_the_probability_of_yes(backend: str, tmp_path) -> None:
    """As Qwen3 Reranker, whose head consists of the rows of "yes" and "no" of the output matrix."""
    yes, no = 7, 11
    source = FIXTURES / "qwen3.gguf"
    with GGUFFile.open(source) as file:
        name = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
        rows = file.tensors[name].to_float32()[[yes, no]]
    path = rewrite(
        source,
        tmp_path / "a.gguf",
        tensors={"cls.output.weight": rows},
        metadata={"qwen3.pooling_type": 4},
    )
    ids, logits = expected("qwen3")
    want = 1 / (1 + np.exp(logits[-1, no] - logits[-1, yes]))
    with LLM(path, backend=backend, threads=2) as llm:
        pool = llm.rank_pool()
        llm.worker.run(ReadoutTask([ids.tolist()], [pool]))
        assert abs(llm.rank_score(pool) - want) <= (1e-5 if backend == "ref" else 1e-2)
        with pytest.raises(UnsupportedError, match="it is a reranker"):
            llm.generate("fox")


def test_a_template_of_the_file_holds_query_and_document() -> None:
    with GGUFFile.open(FIXTURES / "llama.gguf") as file:
        plain = Tokenizer.from_metadata(file.metadata)
        control = min(plain.special_ids)
        end = plain.text_of(control)
        template = {"rerank": f"Q: {{query}}\nD: {{document}}{end}"}
        keys = {f"tokenizer.chat_template.{name}": text for name, text in template.items()}
        metadata = {**file.metadata, **keys, "tokenizer.chat_templates": ["rerank"]}
        made = Tokenizer.from_metadata(metadata)
    query, document = "what {document}", f"a fox {end}"
    ids = made.encode_pair(query, document)
    assert ids == made.encode_prompt(f"Q: {query}\nD: {made.shield(document)}{end}")
    assert ids.count(control) == 1
    assert made.decode(ids, skip_special=False) == f"Q: {query}\nD: {document}{end}"


def test_a_separator_follows_the_query_if_the_file_wants_one() -> None:
    with GGUFFile.open(FIXTURES / "llama.gguf") as file:
        plain = Tokenizer.from_metadata(file.metadata)
    assert plain.sep_id is None
    with GGUFFile.open(RERANKER) as file:
        sep = Tokenizer.from_metadata(file.metadata)
    cls, end = sep.bos_id, sep.eos_id
    a, b = (sep.encode(text, add_special=False) for text in ("fox", "dog"))
    assert sep.encode_pair("fox", "dog") == [cls, *a, end, *b, end]
