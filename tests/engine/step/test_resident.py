"""A decode step on the device: the host makes no number for it, and waits for none."""

import pytest
import torch
from helpers import GREEDY, SEEDED, make_engine, tokens_alone, tokens_of
from resident_helpers import PROMPTS, all_resident, gpu_engine, workload
from torch.overrides import TorchFunctionMode
from triton_marks import needs_triton


class Conversations(TorchFunctionMode):
    """Notes where Python and a tensor's numbers meet: on a GPU, the host waits there."""

    NAMES = ("tensor", "as_tensor", "from_numpy", "item", "tolist", "numpy", "cpu", "__bool__", "__int__")

    def __init__(self):
        super().__init__()
        self.noted = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in self.NAMES:
            self.noted.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "drawn"])
@all_resident
def test_a_launch_in_which_nothing_changes_makes_no_tensor_of_numbers_and_reads_none(options, params):
    """Trap 3, as far as it can be seen without a GPU."""
    engine = make_engine(options=options, block_size=64, prefix_cache=False, decode_first=True)
    for prompt in PROMPTS[:3]:
        engine.add_request(prompt, params)
    while len(engine.scheduler.running) < 3:
        engine.step()
    running = engine.scheduler.running
    in_flight = engine.decode_step.launch(running)  # in this one, everybody joins
    for request, token_id in zip(running, in_flight.read(), strict=True):
        request.output_token_ids.append(token_id)
    with torch.inference_mode(), Conversations() as conversations:
        in_flight = engine.decode_step.launch(running)
    assert conversations.noted == []
    assert in_flight.read() == [tokens_alone(prompt, params)[2] for prompt in PROMPTS[:3]]


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
@all_resident
def test_on_a_gpu_a_launch_never_waits_for_the_gpu(tiny, options, is_drawn):
    """Trap 3: not when requests join, not at a boundary, and not when nothing changes."""
    engine = gpu_engine(tiny, options, max_batch_size=4, block_size=4)
    prompts, params = workload(tiny, 3, is_drawn)
    engine.generate(prompts, params)  # all is compiled and loaded by now
    for each in zip(prompts, params, strict=True):
        engine.add_request(*each)
    running = engine.scheduler.running
    while len(running) < 3:
        engine.step()
    if engine.readback.is_ahead:  # rung 10 has launched a step behind the prefill: its tokens come first
        on_its_way = engine.readback.in_flight
        engine.readback.drop()
        give(on_its_way)
    for _ in range(4):
        torch.cuda.set_sync_debug_mode("error")
        try:
            in_flight = engine.decode_step.launch(running)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        give(in_flight)
    # From rung 13 on they join one after another: the first may have had its last token before the launches.
    again = gpu_engine(tiny, options, max_batch_size=4, block_size=4)
    expected = tokens_of(again.generate(prompts, params))
    for request, tokens in zip(running, expected, strict=True):
        made = min(len(request.output_token_ids), len(tokens))
        assert made >= 5 and request.output_token_ids[:made] == list(tokens[:made])


def give(in_flight) -> None:
    """Each request of a step its token, now that they are here."""
    for request, token_id in zip(in_flight.requests, in_flight.read(), strict=True):
        request.output_token_ids.append(token_id)
