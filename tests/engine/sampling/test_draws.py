"""What a batch asks of the sampler: chosen once, and read as a bool by a step that has two families."""

import pytest

from labkit import SamplingParams
from labkit.engine.sampling import EITHER_WAY, Draws

GREEDY = SamplingParams()
STILL_GREEDY = SamplingParams(top_k=3, top_p=0.5)  # at temperature 0 nothing is drawn
PLAIN = SamplingParams(temperature=1.0)
TOP_K = SamplingParams(temperature=1.0, top_k=3)
MIN_P = SamplingParams(temperature=1.0, min_p=0.5)
TOP_P = SamplingParams(temperature=1.0, top_p=0.5)


@pytest.mark.parametrize(
    ("params", "draws"),
    [
        ([GREEDY], Draws.NONE),
        ([GREEDY, STILL_GREEDY], Draws.NONE),
        ([PLAIN], Draws.PLAIN),
        ([GREEDY, PLAIN, STILL_GREEDY], Draws.PLAIN),
        ([TOP_K], Draws.FILTERED),
        ([GREEDY, TOP_P], Draws.FILTERED),
        ([MIN_P, GREEDY], Draws.FILTERED),
        ([PLAIN, TOP_K, GREEDY], Draws.FILTERED),
    ],
)
def test_a_batch_asks_for_what_its_requests_ask_for_together(params, draws):
    assert Draws.of(params) is Draws.of(params[::-1]) is draws


def test_a_step_with_two_families_reads_it_as_a_bool():
    assert [bool(draws) for draws in (Draws.NONE, Draws.FILTERED, Draws.PLAIN)] == [True, False, False]
    by_bool = {(8, True): "greedy", (8, False): "drawing"}
    assert [by_bool[8, draws] for draws in EITHER_WAY] == ["drawing", "greedy"]
    assert Draws.PLAIN not in EITHER_WAY and set(EITHER_WAY) | {Draws.PLAIN} == set(Draws)
