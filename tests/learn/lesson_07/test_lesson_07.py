"""Lesson 07's build steps: the counts, what the kernel stores, and the package's own lines."""

import inspect

import pytest
from skeletons import filled, steps_of

from labkit import lab, paths
from labkit.kernels import triton_status
from labkit.kvcache import OneTableBlockManager
from labkit.learn.kept import keep_all
from labkit.learn.lesson_07.places import record_attention
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/07_one_table_for_all_layers.ipynb"


@pytest.mark.slow
@pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
def test_the_steps_count_one_reservation_and_the_kernel_stores_and_both_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert lesson.last_lines[0].endswith("called 1 times in a step of 8 requests, 8 lists looked at")
    mine = {"layer_tables": lesson.names["MyReservation"], "kv_write": lesson.names["my_attention"]}
    run = record_attention(mine["kv_write"], [[0, 2], [0, 3]], [6, 6], num_blocks=4)
    keys = run.layouts["k_cache_ptr"]
    stored = {keys.index_of(o)[:3] for o, kind, _ in run.touched("k_cache_ptr") if kind == "write"}
    assert stored == {(2, 0, 2), (3, 0, 2)}

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    here = lab.start("07")
    tables, kernel = (kept.load() for kept in keep_all("07", mine))
    assert here.check(layer_tables=tables).ok
    loaded = record_attention(kernel, [[0, 2], [0, 3]], [6, 6], num_blocks=4)
    assert loaded.accesses == run.accesses
    card = here.card(layer_tables=tables)
    assert card["yours"].equals(card["the package's"])


def test_the_hints_are_the_packages_own_lines():
    (tables, layers), (reservation,), (store,) = (step.pieces for step in steps_of(NOTEBOOK))
    assert tables in inspect.getsource(OneTableBlockManager.count_tables)
    assert layers in inspect.getsource(OneTableBlockManager.layers_of)
    first, *_, counted, told = reservation.splitlines()
    lines = inspect.getsource(OneTableBlockManager.reserve_token_batch).splitlines()
    assert {first, counted, told} <= set(lines)
    kernels = (ROOT / "labkit/kernels/paged_attention_append.py").read_text(encoding="utf-8")
    for name in ("key", "value"):
        line = f"tl.store({name[0]}_cache_ptr + place, {name}"
        assert line in store and line in kernels
