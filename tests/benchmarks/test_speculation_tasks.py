"""Tasks and counts of the benchmark of drafters."""

from __future__ import annotations

from pathlib import Path

import pytest

from zinc.engine.speculative.draft import Draft

FOLDER = Path(__file__).parents[2] / "benchmarks"
OLD = '''
class A:
    def total(self, values):
        """Add values."""
        result = 0
        # One
        for value in values:
            # Two
            result += value
        # Three
        return result
'''
NEW = (
    OLD.replace("result = 0", "result = 0.0")
    + '''
    def mean(self, values):
        """Return the mean."""
        count = len(values)
        result = self.total(values)
        if not count:
            return 0.0
        result /= count
        return result
'''
)


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import speculation_tasks

    return speculation_tasks


@pytest.fixture
def libraries(tasks, tmp_path):
    for name, text in (("old", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(text)
    return [tasks.functions(tmp_path / name) for name in ("old", "new")]


def test_tasks_are_made_of_functions(tasks, libraries):
    old, new = libraries
    assert list(new) == [("a.py", "A.total"), ("a.py", "A.mean")]
    (edit,) = tasks.edits(old, new)
    assert "result = 0\n" in edit.prompt
    assert "result = 0.0\n" in edit.answer
    (written,) = tasks.new_code(old, new)
    assert "def mean(self, values):\nReturn the mean.\n" in written.prompt
    (commented,) = tasks.comments(new)
    assert "#" not in commented.prompt
    assert commented.answer.count("# ") == 3
    renamed = tasks.renames(new)[-1]
    assert "count_value = len(values)" in renamed.answer
    assert "return result_value" in renamed.answer


def test_simulation_accepts_up_to_the_first_wrong_token(tasks):
    import speculation

    class Fixed:
        def __init__(self):
            self.text = []

        def draft(self, most):
            return Draft([1, 2, 9], [0.5, 0.5, 0.5])

        def accept(self, tokens):
            self.text += tokens

    drafter = Fixed()
    count = speculation.simulate(drafter, [1, 2, 3, 1, 4, 1], 3)
    assert drafter.text == [1, 2, 3, 1, 4, 1]
    assert (count.steps, count.tokens, count.drafted, count.accepted) == (3, 6, 9, 4)
