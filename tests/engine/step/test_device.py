"""The device's work of a step: greedy and drawn batches, slots that move on, rows that are not finite."""

import random

import pytest
from helpers import (
    make_engine,
    run,
    spoil_keys,
    tokens_of,
)
from resident_helpers import (
    PROMPTS,
    RUNG_00,
    all_resident,
    gpu_engine,
    resident,
    workload,
)
from triton_marks import needs_triton

from labkit import FinishReason, SamplingParams

# --- whoever is in the batch -----------------------------------------------------------------------


EXTREME = [
    SamplingParams(6, temperature=1e-300, seed=1),
    SamplingParams(6, temperature=10**300, seed=2),
    SamplingParams(6, temperature=1, top_k=10**30, seed=-1),
    SamplingParams(6, temperature=3.0, top_k=2, top_p=5e-324, seed=2**64 - 1),
    SamplingParams(6, temperature=2, top_p=1, seed=-(2**70)),
    SamplingParams(6, temperature=0, top_k=3, top_p=0.5, seed=5),
    SamplingParams(6, temperature=1.5),  # a seed of its own
]


@pytest.mark.slow
@all_resident
def test_parameters_of_any_size_mean_on_the_device_what_they_mean_on_the_host(options):
    made = []
    for each in (RUNG_00, options):
        random.seed(0)  # of which seeds come that are not given
        made.append(tokens_of(make_engine(options=each).generate([PROMPTS[1]] * len(EXTREME), EXTREME)))
    assert made[0] == made[1]
    assert len(set(made[0])) > 3


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
@needs_triton
@resident
def test_on_a_gpu_a_request_whose_logits_are_no_numbers_ends_alone(tiny, options):
    prompts, params = workload(tiny, 3)
    expected = tokens_of(gpu_engine(tiny, options, max_batch_size=4).generate(prompts, params))
    engine = gpu_engine(tiny, options, max_batch_size=4)
    ids = [engine.add_request(*each) for each in zip(prompts, params, strict=True)]
    outputs = [output for _ in range(5) for output in engine.step()]
    session, manager = list(engine.scheduler.running.values())[1], engine.kv_manager
    assert all(manager.refcount(table[-1]) == 1 for table in session.block_ids_per_layer)
    spoil_keys(engine, session)
    outputs += run(engine)
    completions = {o.request_id: o.completion for o in outputs if o.completion}
    assert completions[ids[1]].finish_reason is FinishReason.ERROR
    assert [completions[ids[i]].token_ids for i in (0, 2)] == [expected[0], expected[2]]
