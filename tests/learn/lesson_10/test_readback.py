"""What a reader's readback is made from: right as soon as a subclass says when to launch and when to read."""

import pytest

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams
from labkit.learn.lesson_10.readback import PROMPTS, OneInFlight, flown
from labkit.watch import record_flights

ONE_BEHIND = LADDER["10"].options


class Behind(OneInFlight):
    def next_tokens(self, running):
        step = self.in_flight = self.in_flight or self.decode_step.launch(running)
        self.in_flight = self.launch_behind(step, running)
        return self.hand_out(step, self.read(step, running), running)


class AtOnce(OneInFlight):
    def next_tokens(self, running):
        step = self.decode_step.launch(running)
        return self.hand_out(step, self.read(step, running), running)


class ToNobody(Behind):
    def still_running(self, step, running):
        return []


def engine_of(tiny, part, **settings):
    return InferenceEngine(tiny, ONE_BEHIND, device="cpu", parts={"readback": part}, **settings)


@pytest.mark.slow
def test_who_hands_nothing_out_is_stopped(tiny):
    line = "four requests: not done after 80 calls, 80 steps, launched ahead: 79; tokens for nobody: 320"
    assert flown(engine_of(tiny, ToNobody)) == line


@pytest.mark.slow
def test_where_blocks_are_missing_the_next_step_waits_until_room_was_made(tiny):
    """Four requests in a pool that is too small for all of them."""
    made = {}
    for part in (Behind, AtOnce):
        engine = engine_of(tiny, part, cache=CacheConfig(4, max_blocks_per_layer=18, prefix_cache=False))
        for prompt in PROMPTS:
            engine.add_request(prompt, SamplingParams(24, stop_on_eos=False))
        outputs = []
        with record_flights(engine) as watched:
            while engine.has_work:
                outputs += engine.step()
        assert engine.stats().counters.preemptions == 2
        engine.check_integrity()
        made[part] = [[o.token_id for o in outputs if o.request_id == i] for i in range(len(PROMPTS))]
        at_once = sum(flight.launched_in == flight.read_in for flight in watched.flights)
        # Behind: the first step, and the one after each wait: twice for blocks, and when two end together.
        assert at_once == (4 if part is Behind else watched.calls)
    assert made[Behind] == made[AtOnce]
