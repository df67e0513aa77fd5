"""Lesson 08: what a capture is on this machine, and of which rows there can be none."""

from helpers import GREEDY, make_engine, tokens_alone

from labkit import LADDER
from labkit.learn.lesson_08.graphs import capturing
from labkit.watch import ToyGraph, device_step_of

BELOW = LADDER["07"].options


def test_without_a_gpu_a_capture_is_a_toy_whose_tokens_lie_where_a_replay_leaves_them():
    engine = make_engine(options=BELOW, max_batch_size=3)
    with capturing(device_step_of(engine), ToyGraph) as capture:
        graph, token_ids = capture(2, True)
        other, _ = capture(2, False)
    assert type(graph) is type(other) is ToyGraph and len(other.launches) > len(graph.launches)
    engine.add_request((1, 2, 3), GREEDY)
    made = [output.token_id for _ in range(2) for output in engine.step()]
    expected = list(tokens_alone((1, 2, 3), GREEDY))
    assert made == expected[: len(made)]
    for token_id in expected[len(made) : len(made) + 2]:
        graph.replay()
        assert token_ids[0] == token_id
