"""What steps ask of the books, the model and the launcher."""

from helpers import make_engine

from labkit import LADDER, SamplingParams, watch

AT_ONCE, ONE_BEHIND = LADDER["09"].options, LADDER["10"].options
PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4)]


def test_launches_are_counted_by_kind_and_the_engine_is_as_before():
    params = SamplingParams(20, stop_on_eos=False)
    engine = make_engine(options=ONE_BEHIND, prefix_cache=False)
    # 19 launches; the first walks over the requests, and nobody leaves before the end.
    with watch.count_launches(engine) as counts:
        engine.generate(PROMPTS, params)
    assert counts == {"walked": 1, "in a steady batch": 18}
    assert not {"launch", "launch_again"} & set(vars(engine.decode_step))
    engine = make_engine(options=AT_ONCE, prefix_cache=False)
    with watch.count_launches(engine) as counts:
        engine.generate(PROMPTS, params)
    assert dict(counts) == {"walked": 19, "in a steady batch": 0}
