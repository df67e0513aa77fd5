"""The moments of one request, and those of a GPU on the host's clock."""

from dataclasses import replace

import pytest

from labkit import InferenceEngine, SchedulerConfig
from labkit.learn.lesson_19 import timeline
from labkit.learn.lesson_19.parts import AS_IT_IS
from labkit.model import load_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_the_moments_of_a_request_are_in_order(device: str):
    model = replace(load_model("data/tiny-gpt2"), chat_template=AS_IT_IS)
    engine = InferenceEngine(model, device=device, scheduler=SchedulerConfig(max_batch_size=2))
    marks = timeline.one_request(engine, "O Romeo", 4)
    assert marks.began < marks.entered <= marks.body_read <= marks.checked <= marks.timing.arrived
    assert [work for _, _, work in marks.launches] == ["a prompt's chunk"] + ["a token's step"] * 3
    moments = [moment for start, end, _ in marks.launches for moment in (start, end)]
    assert moments == sorted(moments)
    assert all(end > start for start, end, _ in marks.launches)
    lanes = {stretch.lane for stretch in marks.stretches()}
    assert lanes == {"client", "event loop", "tokenizer", "engine", "model"}
    assert marks.timing.admitted < marks.timing.tokens[0] < marks.received[1]
