"""What a reader's readback is made from: who hands nothing out is stopped."""

import pytest

from labkit import LADDER, InferenceEngine
from labkit.learn.lesson_10.readback import OneInFlight, flown


class ToNobody(OneInFlight):
    def next_tokens(self, running):
        step = self.in_flight = self.in_flight or self.decode_step.launch(running)
        self.in_flight = self.launch_behind(step, running)
        return self.hand_out(step, self.read(step, running), running)

    def still_running(self, step, running):
        return []


@pytest.mark.slow
def test_who_hands_nothing_out_is_stopped(tiny):
    engine = InferenceEngine(tiny, LADDER["10"].options, device="cpu", parts={"readback": ToNobody})
    line = "four requests: not done after 80 calls, 80 steps, launched ahead: 79; tokens for nobody: 320"
    assert flown(engine) == line
