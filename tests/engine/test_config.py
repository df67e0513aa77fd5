"""Fields of configs and parameters: what is said of wrong ones, and how large right ones may be."""

import inspect
from dataclasses import replace

import pytest
from bad_values import HUGE
from helpers import GREEDY, make_engine, tokens_alone

from labkit import CacheConfig, EngineOptions, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.errors import LabkitError


@pytest.mark.parametrize("value", [2**31, 2**63, 10**30, HUGE], ids=["2**31", "2**63", "10**30", "huge"])
def test_limits_that_take_no_memory_may_be_of_any_size(value):
    engine = make_engine(
        max_prefix_entries=value,
        prefill_max_batch_size=value,
        prefill_max_tokens=value,
        pack_window=value,
        admission_policy="pack",
    )
    (completion,) = engine.generate([(1, 2, 3)], replace(GREEDY, top_k=value, seed=value))
    assert completion.token_ids == tokens_alone((1, 2, 3), GREEDY)


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (SamplingParams, "max_tokens", "SamplingParams has no 'max_tokens': it is max_new_tokens here"),
        (SamplingParams, "n", r"has no 'n': repeat the prompt, as in generate\(\[prompt\] \* n, params\)"),
        (SamplingParams, "temprature", "has no 'temprature': did you mean temperature"),
        (SchedulerConfig, "max_num_seqs", "has no 'max_num_seqs': it is max_batch_size here"),
        (EngineOptions, "colour", "EngineOptions has no 'colour': it has block_tables, kv_append, "),
        (InferenceEngine, "max_batch_size", r"say scheduler=SchedulerConfig\(max_batch_size=\.\.\.\)"),
    ],
)
def test_an_unknown_name_is_refused_with_the_name_that_it_has_here(make, name, message):
    with pytest.raises(LabkitError, match=message):
        make(**{name: 4})


def test_a_signature_is_that_of_the_fields_and_a_repr_shows_what_was_chosen():
    assert str(inspect.signature(SamplingParams)).startswith("(max_new_tokens: int = 16, temperature: float")
    assert repr(SamplingParams(top_k=4)) == "SamplingParams(top_k=4)"
    assert repr(SamplingParams(10**5000)) == "SamplingParams(max_new_tokens=a number of 16610 bits)"
    assert [repr(make()) for make in (CacheConfig, EngineOptions)] == ["CacheConfig()", "EngineOptions()"]
    assert len(str(inspect.signature(InferenceEngine))) < 500


def test_one_stop_string_or_several_are_kept_where_nobody_can_change_them():
    strings = ["a", "b"]
    params = SamplingParams(stop=strings)
    strings.append("c")
    assert params.stop == ("a", "b") and SamplingParams(stop="ab").stop == ("ab",)
