"""The device's work of a step: greedy and drawn batches, slots that move on, rows that are not finite."""

import random
from dataclasses import replace

import pytest
from helpers import (
    GREEDY,
    SEEDED,
    assert_no_block_is_lost,
    make_engine,
    run,
    spoil_keys,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from resident_helpers import (
    EACH_PARAMS,
    EXPECTED,
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


class Recorder:
    """Stands for a `DeviceStep` and notes what it was asked for."""

    def __init__(self, engine):
        self.engine, self.device_step = engine, engine.decode_step.device_step
        self.calls = []
        engine.decode_step.device_step = self

    def __call__(self, batch_size, max_context_len, is_greedy):
        running = self.engine.scheduler.running
        assert batch_size == len(running)
        assert max_context_len >= max(session.num_tokens for session in running.values())
        self.calls.append((batch_size, is_greedy))
        return self.device_step(batch_size, max_context_len, is_greedy)


@resident
def test_a_batch_goes_from_greedy_to_drawn_and_back_and_nobody_notices(options):
    engine = make_engine(options=options, max_batch_size=4, decode_first=True)
    recorder = Recorder(engine)
    long = SamplingParams(max_new_tokens=16)
    drawn = [replace(SEEDED, max_new_tokens=n, seed=n) for n in (3, 4, 6)]
    schedule = {0: [long, GREEDY], 3: drawn[:1], 8: [GREEDY], 10: drawn[1:]}
    requests, outputs = {}, []
    for step in range(30):
        for i, params in enumerate(schedule.get(step, ())):
            prompt = PROMPTS[(step + i) % len(PROMPTS)]
            requests[engine.add_request(prompt, params)] = prompt, params
        outputs += engine.step()
        engine.check_integrity()
    assert not engine.has_work
    handed_out = tokens_by_request(outputs)
    assert handed_out == {i: tokens_alone(*each) for i, each in requests.items()}
    modes = [is_greedy for _, is_greedy in recorder.calls]
    changes = [mode for i, mode in enumerate(modes) if i == 0 or mode != modes[i - 1]]
    assert changes[:4] == [True, False, True, False]
    assert {size for size, _ in recorder.calls} >= {1, 2, 3, 4}


EXTREME = [
    SamplingParams(6, temperature=1e-300, seed=1),
    SamplingParams(6, temperature=10**300, seed=2),
    SamplingParams(6, temperature=1, top_k=10**30, seed=-1),
    SamplingParams(6, temperature=3.0, top_k=2, top_p=5e-324, seed=2**64 - 1),
    SamplingParams(6, temperature=2, top_p=1, seed=-(2**70)),
    SamplingParams(6, temperature=0, top_k=3, top_p=0.5, seed=5),
    SamplingParams(6, temperature=1.5),  # a seed of its own
]


@all_resident
def test_parameters_of_any_size_mean_on_the_device_what_they_mean_on_the_host(options):
    made = []
    for each in (RUNG_00, options):
        random.seed(0)  # of which seeds come that are not given
        made.append(tokens_of(make_engine(options=each).generate([PROMPTS[1]] * len(EXTREME), EXTREME)))
    assert made[0] == made[1]
    assert len(set(made[0])) > 3


@resident
def test_each_slot_moves_on_with_its_session(options):
    """After every decode step: length, last token and random numbers drawn, on the device as on the host."""
    engine = make_engine(options=options, max_batch_size=4, prefix_cache=False)
    slots = engine.decode_step.slots
    for prompt, params in zip(PROMPTS, EACH_PARAMS, strict=True):
        engine.add_request(prompt, params)
    num_compared = 0
    while engine.has_work:
        engine.step()
        for request, session in engine.scheduler.running.items():
            if (slot := slots.slot_of.get(session)) is None:
                continue  # its prefill was this step
            assert slots.context_lens[slot] == session.num_tokens
            assert slots.last_token_ids[slot] == request.output_token_ids[-1]
            if not request.params.is_greedy:
                assert slots.sampling_state.draws[slot] == len(request.output_token_ids)
            num_compared += 1
        assert slots.context_lens[slots.padding_slot] == -1
    assert num_compared > 20


@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("num_made", [1, 4])
@resident
def test_a_request_whose_logits_are_no_numbers_ends_alone(options, num_made, broken):
    """Its keys are broken, not its tokens; its blocks are used again, with what is in them."""
    engine = make_engine(options=options, prefix_cache=False, max_blocks_per_layer=9, block_size=4)
    params = [GREEDY, SEEDED, GREEDY]
    request_ids = [engine.add_request(*each) for each in zip(PROMPTS[:3], params, strict=True)]
    outputs = []
    for _ in range(num_made):
        outputs += engine.step()
    spoil_keys(engine, list(engine.scheduler.running.values())[broken])
    outputs += run(engine)
    completions = {o.request_id: o.completion for o in outputs if o.completion}
    failed = completions.pop(request_ids[broken])
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error == "the model's logits are not finite numbers"
    assert failed.token_ids == EXPECTED[broken][:num_made]
    others = [i for i in range(3) if i != broken]
    assert [completions[request_ids[i]].token_ids for i in others] == [EXPECTED[i] for i in others]
    assert_no_block_is_lost(engine)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED


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
