"""On the CPU, the same seeds give the same tokens: on every run, in any batch, in any process."""

import json
import os
import random
import subprocess
import sys

import pytest
from helpers import BY_DAY, ENGINES, engines_by_day, make_engine, tokens_alone, tokens_of
from same_again import EACH_PARAMS, PROMPTS, outputs_of

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

ALONE = [tokens_alone(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]


@engines_by_day
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("max_batch_size", [2, 8])
def test_a_request_gets_the_same_tokens_in_batches_of_any_size_and_order(
    options, max_batch_size, prefix_cache
):
    engine = make_engine(options=options, max_batch_size=max_batch_size, prefix_cache=prefix_cache)
    dice = random.Random(max_batch_size)
    order = list(range(len(PROMPTS)))
    for _ in range(3):  # what was cached by one round is found by the next
        made = tokens_of(engine.generate([PROMPTS[i] for i in order], [EACH_PARAMS[i] for i in order]))
        assert dict(zip(order, made, strict=True)) == dict(enumerate(ALONE))
        dice.shuffle(order)


def test_a_new_process_gives_the_same_tokens_in_the_same_steps():
    """Its strings, and so its sets of them, have other hashes."""
    ran = subprocess.run(
        [sys.executable, "tests/support/same_again.py"],
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": f"{ROOT}{os.pathsep}tests/support"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        name: outputs_of(options) for name, options in ENGINES.items() if name in BY_DAY
    }
