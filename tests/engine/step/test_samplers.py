"""Samplers of a step: the host's tokens without a sort, and the family of steps that each batch takes."""

from dataclasses import replace

import pytest
from helpers import GREEDY, make_engine, tokens_alone, tokens_of
from resident_helpers import PROMPTS, gpu_engine, workload
from triton_marks import needs_triton

from labkit import SamplingParams
from labkit.engine.sampling import EITHER_WAY, Draws
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import GraphedStep
from labkit.engine.step.samplers import SearchedSampler, SortedSampler
from labkit.kernels import draw_plain, draw_triton
from labkit.ladder import DEVICE_RESIDENT_STATE, OVERLAP, SAMPLING_WITHOUT_SORTS

PLAIN = SamplingParams(8, temperature=1.3, seed=7)
TOP_K = replace(PLAIN, top_k=5, seed=8)
TOP_P = replace(PLAIN, top_p=0.7, seed=9)
MIN_P = replace(PLAIN, min_p=0.5, seed=10)


def device_step_of(engine) -> DeviceStep:
    step = engine.decode_step.device_step
    return step.device_step if isinstance(step, GraphedStep) else step


def noting_draws(engine) -> list[Draws]:
    """Which family each step of the engine is of, from here on."""
    device_step, noted = engine.decode_step.device_step, []

    def noting(batch_size, max_context_len, draws):
        noted.append(draws)
        return device_step(batch_size, max_context_len, draws)

    engine.decode_step.device_step = noting
    return noted


def test_a_batch_changes_its_family_when_one_leaves_that_draws():
    engine = make_engine(options=SAMPLING_WITHOUT_SORTS)
    noted = noting_draws(engine)
    params = [
        replace(GREEDY, max_new_tokens=9, top_k=3, top_p=0.5),  # at temperature 0 nothing is drawn
        replace(PLAIN, max_new_tokens=6),
        replace(TOP_P, max_new_tokens=3),
    ]
    engine.generate(PROMPTS[:3], params)
    changes = [draws for i, draws in enumerate(noted) if i == 0 or draws != noted[i - 1]]
    assert changes == [Draws.FILTERED, Draws.PLAIN, Draws.NONE]


@pytest.mark.parametrize("options", [DEVICE_RESIDENT_STATE, OVERLAP], ids=["06", "10"])
def test_a_sorted_step_is_told_no_third_family(options):
    engine = make_engine(options=options)
    assert engine.decode_step.families == EITHER_WAY
    assert type(device_step_of(engine).sampler) is SortedSampler
    noted = noting_draws(engine)
    engine.generate(PROMPTS[:2], [GREEDY, PLAIN])
    assert set(noted) <= set(EITHER_WAY) and noted[0] == Draws.FILTERED


def test_a_launch_of_ones_own_that_names_no_families_is_told_two():
    """As a reader's graphs of lesson 08, which have a key for greedy batches and one for the others."""

    class MyGraphs:
        def __init__(self, device_step):
            self.steps = {is_greedy: (device_step, is_greedy) for is_greedy in (False, True)}

        def __call__(self, batch_size, max_context_len, is_greedy):
            device_step, asked = self.steps[is_greedy]
            return device_step(batch_size, max_context_len, asked)

    engine = make_engine(options=SAMPLING_WITHOUT_SORTS, parts={"launch": MyGraphs})
    assert [bool(draws) for draws in Draws] == [False, True, False]
    params = [GREEDY, PLAIN, TOP_P]
    expected = [tokens_alone(prompt, each) for prompt, each in zip(PROMPTS[:3], params, strict=True)]
    assert tokens_of(engine.generate(PROMPTS[:3], params)) == expected
    assert tokens_of(engine.generate([PROMPTS[1]], PLAIN)) == [expected[1]]


def test_the_part_of_ones_own_is_what_draws():
    calls = []

    def my_draw(logits, token_ids, slot_mapping, last_token_ids, state, is_filtered):
        calls.append((len(logits), is_filtered))
        draw_plain(logits, token_ids, slot_mapping, last_token_ids, state, is_filtered)

    engine = make_engine(options=SAMPLING_WITHOUT_SORTS, parts={"sampler": my_draw})
    assert device_step_of(engine).sampler.draw is my_draw
    for params, is_filtered in ((TOP_K, True), (MIN_P, True), (PLAIN, False)):
        calls.clear()
        assert tokens_of(engine.generate([PROMPTS[0]], params)) == [tokens_alone(PROMPTS[0], params)]
        assert set(calls) == {(1, is_filtered)}


@needs_triton
@pytest.mark.parametrize(("attention", "draw"), [("plain", draw_plain), ("triton", draw_triton)])
def test_what_draws_is_a_kernel_where_attention_is_one(attention, draw):
    options = replace(DEVICE_RESIDENT_STATE, sampler="searched", attention=attention)
    sampler = device_step_of(make_engine(options=options)).sampler
    assert type(sampler) is SearchedSampler and sampler.draw is draw


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
@needs_triton
def test_on_a_gpu_there_is_a_graph_for_each_family_and_tokens_are_those_of_sorts(tiny):
    prompts, params = workload(tiny, 13, is_drawn=True)
    params[3] = replace(params[3], top_k=0, top_p=1.0)
    made = {}
    for options in (OVERLAP, SAMPLING_WITHOUT_SORTS):
        engine = gpu_engine(tiny, options, max_batch_size=16)
        assert {draws for _, draws in engine.decode_step.device_step.graphs} == set(
            engine.decode_step.families
        )
        made[options.sampler] = tokens_of(engine.generate(prompts, params))
    assert made["searched"] == made["sorted"]
