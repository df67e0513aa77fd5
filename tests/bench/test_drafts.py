"""`python -m labkit.bench drafts`: a record with a task each, and what its samples say together."""

import json

import pytest
from pytest import approx

from labkit.bench import drafts
from labkit.results.comparison import Comparison, DraftedTask, together
from labkit.results.files import record_of


def test_every_task_has_a_kind_and_a_prompt():
    tasks = json.loads(drafts.TASKS.read_text(encoding="utf-8"))
    assert {task["kind"] for task in tasks} == {"summarize", "edit", "code", "free"}
    assert len({task["name"] for task in tasks}) == len(tasks)
    assert all(("user" in task) != ("text" in task) for task in tasks)


@pytest.mark.slow
def test_tasks_are_decoded_on_both_sides_and_recorded(recorded, monkeypatch, capsys, tmp_path):
    texts = {"code": "the king is the king and the king is", "free": "The king"}
    tasks = [{"kind": kind, "name": f"a {kind}", "text": text} for kind, text in texts.items()]
    monkeypatch.setattr(drafts, "TASKS", tmp_path / "tasks.json")
    drafts.TASKS.write_text(json.dumps(tasks))
    made = recorded("drafts --model data/tiny-gpt2 --device cpu --rounds 1 --max-new-tokens 24")
    said = capsys.readouterr().out
    assert "code: a code" in said and "grounded: x" in said and "free: x" in said
    record = record_of(made, "out")
    code = record.samples[0]
    assert [sample.name for sample in record.samples] == ["a code", "a free"]
    assert len(code.comparison.before_samples) == len(code.comparison.after_samples) == 2
    assert code.new_tokens - 1 == code.steps + code.accepted > code.steps
    assert code.tokens_a_step == approx(1 + code.accepted / code.steps)


def test_together_is_the_ratio_of_the_sums():
    def task(before: float, after: float) -> DraftedTask:
        sides = ((before,) * 4, (after,) * 4)
        return DraftedTask("edit", "a", 9, 41, 20, 30, 20, Comparison("without", "with", *sides, {}, {}))

    speedup, interval = together([task(6, 2), task(2, 2)])
    assert speedup == approx(2) and interval.low == approx(2) == interval.high
