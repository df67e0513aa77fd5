"""How a layer attends and writes: writes are counted, unused slots are not read, the kernels agree."""

from dataclasses import replace

import pytest
import torch
from helpers import CONFIG, GREEDY, SEEDED, assert_no_block_is_lost, make_engine, tokens_alone, tokens_of
from resident_helpers import ALL_RESIDENT, EACH_PARAMS, PROMPTS, all_resident
from triton_marks import needs_interpreter

from labkit.engine.step import attention as step_attention
from labkit.engine.step import build
from labkit.engine.step.attention import SharedAttention
from labkit.kernels import SharePlan
from labkit.ladder import FUSED_AND_SPLIT


@pytest.mark.slow
@all_resident
def test_every_layers_writes_are_counted(options):
    engine = make_engine(options=options, max_batch_size=4, prefix_cache=False)
    engine.generate(PROMPTS, EACH_PARAMS)
    stats = engine.stats()
    assert stats.append_paths[options.kv_write] == stats.counters.decode_steps * CONFIG.n_layer
    taken = sum(stats.append_paths[path] for path in ("in_place", "boundary"))
    assert taken == stats.counters.decoded_tokens * engine.kv_manager.num_tables


@pytest.mark.slow
@needs_interpreter
@pytest.mark.parametrize("rung", ["06", "07", "09", "11", "13"])  # where other kernels are asked for
def test_with_triton_attention_in_the_interpreter_the_tokens_are_those_of_rung_00(rung):
    params = [replace(each, max_new_tokens=4) for each in (GREEDY, SEEDED)]
    engine = make_engine(options=replace(ALL_RESIDENT[rung], attention="triton"))
    prompts = [PROMPTS[1], PROMPTS[0]]  # the first meets a boundary
    expected = [tokens_alone(*each) for each in zip(prompts, params, strict=True)]
    assert tokens_of(engine.generate(prompts, params)) == expected
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@needs_interpreter
def test_attention_in_shares_is_planned_once_a_step_for_the_rows_there_are(monkeypatch):
    monkeypatch.setattr(build, "SplitAttention", SharedAttention)
    planned, plan_shares = [], step_attention.plan_shares_triton

    def spy(context_lens: torch.Tensor, slot_mapping: torch.Tensor, plan: SharePlan) -> None:
        planned.append(len(slot_mapping))
        plan_shares(context_lens, slot_mapping, plan)

    monkeypatch.setattr(step_attention, "plan_shares_triton", spy)
    params = [replace(each, max_new_tokens=n) for each, n in ((GREEDY, 2), (SEEDED, 4))]
    engine = make_engine(options=replace(FUSED_AND_SPLIT, attention="triton"))
    expected = [tokens_alone(*each) for each in zip(PROMPTS[:2], params, strict=True)]
    assert tokens_of(engine.generate(PROMPTS[:2], params)) == expected
    assert planned == [2, 1, 1]  # and the first token is the prompt's
    assert isinstance(engine.decode_step.device_step.attention.attention, SharedAttention)
