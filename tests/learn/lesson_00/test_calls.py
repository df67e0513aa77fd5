"""Lesson 00: the arguments of an attention in a live step, and the operators of a step."""

import re

import pytest
import torch

from labkit import CacheConfig, SamplingParams, lab
from labkit.kernels import paged_attention_plain
from labkit.learn.lesson_00.calls import attention_call, head_weights, operators_of_a_step
from labkit.learn.lesson_00.pieces import gather, paged_attention, weights

NO_SHARING = CacheConfig(block_size=4, prefix_cache=False)


@pytest.fixture(scope="module")
def here():
    return lab.start("00")


@pytest.fixture
def running(here):
    """Two requests of 5 and 3 tokens, each with its first new token."""
    engine = here.build(dtype=torch.float32, cache=NO_SHARING)
    for prompt in ([1, 2, 3, 4, 5], [6, 7, 8]):
        engine.add_request(prompt, SamplingParams(8, stop_on_eos=False))
        engine.step()
    return engine


def test_a_call_is_the_layers_own_as_it_was_before_the_append(running):
    held = [session.num_tokens for session in running.scheduler.running.values()]
    call = attention_call(running, layer_idx=2)
    assert call["context_lens"].tolist() == held and call["max_context_len"] == max(held)
    assert list(call["query"].shape) == [2, 4, 64]
    now = running.kv_manager.k_cache[2]  # the step has appended to it
    block, slot = divmod(held[0], 4)
    assert now[call["block_table"][0, block], :, slot].equal(call["key_new"][0])
    assert not call["k_cache_layer"].equal(now)


def test_head_weights_times_values_are_the_packages_attention(running):
    call = attention_call(running, layer_idx=1)
    of_tokens = head_weights(call, 3, gather, weights)
    num_tokens = int(call["context_lens"][0])
    assert len(of_tokens) == num_tokens + 1 and sum(of_tokens) == pytest.approx(1)
    values = torch.cat(
        [gather(call["v_cache_layer"], call["block_table"][0], num_tokens), call["value_new"][0][:, None]], 1
    )
    out = paged_attention_plain(**call)[0, 3]
    torch.testing.assert_close(torch.tensor(of_tokens) @ values[3].cpu(), out.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_operators_are_counted_and_an_error_is_told(here):
    def count(attention):
        return operators_of_a_step(here.build(attention=attention, cache=CacheConfig(prefix_cache=False)))

    at_once, loops = (
        int(re.fullmatch(r"operators of a step, 8 requests: ([\d,]+)", count(a))[1].replace(",", ""))
        for a in (paged_attention_plain, paged_attention())
    )
    assert loops > 4 * at_once

    def broken(query, *_):
        return query.nothing

    assert re.match(
        r"operators: not counted, because the engine raised AttributeError: .*nothing", count(broken)
    )
