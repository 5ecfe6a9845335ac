"""Marks in the cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from zinc.core import marks
from zinc.core.marks import Mark


def test_a_mark_belongs_to_its_kind_facts_and_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(marks, "cache_folder", lambda: tmp_path / "new")
    assert not Mark("cubin", "a", 1).is_set()
    Mark("cubin", "a", 1).set()
    assert Mark("cubin", "a", 1).is_set()
    others = Mark("cubin", "a", 2), Mark("cubin", "a"), Mark("self-test", "a", 1)
    assert not any(mark.is_set() for mark in others)
    monkeypatch.setattr(marks, "__version__", "99")
    assert not Mark("cubin", "a", 1).is_set()


@pytest.mark.parametrize("name", ["file", "x" * 300])
def test_a_folder_that_cannot_be_read_or_written_has_no_marks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(marks, "cache_folder", lambda: tmp_path / name)
    Mark("cubin").set()
    assert not Mark("cubin").is_set()
