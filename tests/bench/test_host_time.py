"""Host time: what is left when the model is taken out is the same step."""

import pytest
import torch
from helpers import every_engine

from labkit import LADDER
from labkit.bench import host_engine, time_host_steps
from labkit.bench.host_time import SHAPE, WARMUP_STEPS, no_attention
from labkit.watch import capture, steady_decode

OPTIONS = LADDER["00"].options


@every_engine
def test_the_books_are_kept_as_with_a_model(options):
    engine = host_engine(options, 3, "cpu")
    with steady_decode(engine, [list(range(8))] * 3, max_new_tokens=20):
        before = engine.stats()
        engine.step()
        after = engine.stats()
        engine.check_integrity()
        ahead = options.readback == "one_behind"
        grown = 3 + 1 + ahead  # warmed up by 3
        assert [s.num_tokens for s in engine.scheduler.running.values()] == [8 + grown] * 3
        written = after.append_paths["in_place"] - before.append_paths["in_place"]
        assert written == engine.kv_manager.num_tables * 3  # one a table and request
    assert after.counters.decoded_tokens - before.counters.decoded_tokens == 3


def test_keys_and_values_are_strided_as_the_models_are():
    from labkit.model.checkpoint import random_network
    from labkit.model.config import GPT2Config

    strides = []

    def attend(layer_idx, query, key, value):
        strides.append([t.stride() for t in (query, key, value)])
        return query

    engine = host_engine(OPTIONS, 2, "cpu")
    ids, lengths = torch.zeros(2, 4, dtype=torch.long), torch.tensor([4, 4])
    engine.model.network.prefill(ids, lengths)
    engine.model.network.decode_one_token(ids[:, 0], lengths, attend)
    config = GPT2Config(11, 8, SHAPE.n_embd, 1, SHAPE.n_head)
    random_network(config, 0).decode_one_token(ids[:, 0], lengths, attend)
    assert len(strides) == SHAPE.n_layer + 1
    assert strides[0] == strides[-1]


@pytest.mark.parametrize("rung", LADDER)
def test_every_step_is_timed_in_its_parts(rung):
    time = time_host_steps(host_engine(LADDER[rung].options, 2, "cpu"), num_steps=5)
    assert (time.batch_size, time.num_layers) == (2, 12)
    assert len(time.step_seconds) == len(time.tables_seconds) == len(time.append_seconds) == 5
    for step, tables, append in zip(time.step_seconds, time.tables_seconds, time.append_seconds, strict=True):
        is_asked = LADDER[rung].options.readback == "at_once"  # else no block is full and nothing is sent
        assert 0 < tables + append < step if is_asked else tables == append == 0 < step


class OneGraph:
    """A launch of the caller's own: a toy graph of two greedy requests."""

    def __init__(self, device_step):
        self.device_step, self.replays = device_step, 0
        self.graph, self.token_ids = capture(device_step, 2, True)

    def __call__(self, batch_size, max_context_len, is_greedy):
        self.graph.replay()
        self.replays += 1
        return self.token_ids


def test_a_toy_graph_of_the_caller_s_launch_holds_nothing():
    engine = host_engine(LADDER["08"].options, 2, "cpu", {"launch": OneGraph})
    launch = engine.decode_step.device_step
    assert launch.graph.launches == [] and launch.device_step.attention.attention is no_attention
    time_host_steps(engine, num_steps=4)
    assert launch.replays == WARMUP_STEPS + 4
    assert capture(launch.device_step, 2, True)[0].launches  # as before


@pytest.mark.cuda
def test_host_time_runs_on_a_gpu():
    time = time_host_steps(host_engine(OPTIONS, 4, "cuda"), num_steps=5)
    assert all(step > 0 for step in time.step_seconds)


def test_positions_differ_when_the_prompts_do():
    for lengths, path in (((8,), "full_batch"), ((8, 11), "identity_pos")):
        engine = host_engine(LADDER["04"].options, 4, "cpu")
        time_host_steps(engine, num_steps=2, lengths=lengths)
        assert engine.stats().append_paths[path] == SHAPE.n_layer * (WARMUP_STEPS + 2)
