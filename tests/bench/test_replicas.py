"""The requests that several replicas get."""

import pytest

from labkit import SamplingParams
from labkit.bench.loads import Asked, make_load
from labkit.bench.replicas import mixed
from labkit.bench.workload import Request
from labkit.errors import OptionError
from labkit.model.random_configs import RANDOM_CONFIGS


def asked(count, seed=0):
    params = SamplingParams(4, stop_on_eos=False)
    return Asked((Request((), params),) * count, RANDOM_CONFIGS["gpt2"], seed)


def test_several_beginnings_are_mixed_and_do_not_take_turns():
    requests = mixed("shared-prefix", 3, asked(8))
    beginnings = [request.prompt[:512] for request in requests]
    assert sorted(map(beginnings.count, set(beginnings))) == [2, 3, 3]
    assert beginnings != (beginnings[:3] * 3)[:8]
    assert len({request.prompt for request in requests}) == 8


def test_each_seed_has_beginnings_of_its_own_and_one_is_the_load_itself():
    first, second = (mixed("shared-prefix", 3, asked(6, seed)) for seed in (0, 1))
    assert not {each.prompt[:512] for each in first} & {each.prompt[:512] for each in second}
    assert mixed("ragged", 1, asked(6, 5)) == make_load("ragged", asked(6, 5))


def test_an_unknown_load_is_refused():
    with pytest.raises(OptionError, match="there is no load 'busy'"):
        mixed("busy", 2, asked(4))
