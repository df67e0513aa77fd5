"""Lesson 08's bug: slots that are made anew while graphs know the old ones."""

from helpers import make_engine, tokens_alone

from labkit import LADDER, SamplingParams
from labkit.learn.lesson_08.traps import SlotsMadeAnew
from labkit.watch import device_step_of


def test_who_is_there_goes_on_right_and_who_joins_gets_another_text():
    params = SamplingParams(8, stop_on_eos=False)
    engine = make_engine(options=LADDER["07"].options, max_batch_size=2, prefix_cache=False, block_size=16)
    engine.decode_step.device_step = SlotsMadeAnew(device_step_of(engine))
    texts = [engine.generate([prompt], params)[0].token_ids for prompt in ((1, 2, 3), (7, 8, 9, 4, 2))]
    engine.check_integrity()
    assert texts[0] == tokens_alone((1, 2, 3), params)
    assert texts[1] != tokens_alone((7, 8, 9, 4, 2), params)
