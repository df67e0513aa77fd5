"""An engine on a GPU that is not the current one: kernels, streams, graphs and events go to its own."""

import pytest
import torch
from helpers import make_engine, tokens_of
from streaming_helpers import start

from labkit import LADDER, InferenceEngine, SamplingParams
from labkit.engine import StreamingServer

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
]
PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4), (7,)]
EACH_PARAMS = [SamplingParams(12, stop_on_eos=False), SamplingParams(12, temperature=0.9, seed=5)] * 2
EACH_PARAMS.append(EACH_PARAMS[0])
rungs = pytest.mark.parametrize(
    "number", ["00", "03", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14"]
)


def engine_on(device: str, model, number: str) -> InferenceEngine:
    sizes = {"max_batch_size": 3, "prefill_max_batch_size": 1}
    return make_engine(model, LADDER[number].options, device=device, **sizes)


@rungs
def test_an_engine_on_the_second_gpu_gives_the_tokens_of_the_first_to_threads_whose_gpu_is_the_first(
    tiny, number
):
    expected = tokens_of(engine_on("cuda:0", tiny, number).generate(PROMPTS, EACH_PARAMS))
    assert torch.cuda.current_device() == 0
    engine = engine_on("cuda:1", tiny, number)
    used_before = torch.cuda.memory_allocated(0)
    for _ in range(3):
        assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == expected
    assert torch.cuda.current_device() == 0
    assert torch.cuda.memory_allocated(0) == used_before  # nothing of it lies on the first
    engine.check_integrity()
    assert tokens_of(start(engine.generate, PROMPTS, EACH_PARAMS).result()) == expected
    with StreamingServer(engine) as server:
        streams = [server.submit(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]
        assert [list(stream)[-1].completion.token_ids for stream in streams] == expected


@pytest.mark.parametrize("number", ["05", "08", "10", "14"])
def test_engines_on_both_gpus_take_turns_undisturbed(tiny, number):
    engines = [engine_on(f"cuda:{i}", tiny, number) for i in range(2)]
    expected = tokens_of(engines[0].generate(PROMPTS, EACH_PARAMS))
    for engine in engines:
        for each in zip(PROMPTS, EACH_PARAMS, strict=True):
            engine.add_request(*each)
    completions = [[], []]
    while any(engine.has_work for engine in engines):
        for engine, its_completions in zip(engines, completions, strict=True):
            if engine.has_work:
                its_completions += engine.step().completions
    for its_completions in completions:
        assert tokens_of(sorted(its_completions, key=lambda c: c.request_id)) == expected
