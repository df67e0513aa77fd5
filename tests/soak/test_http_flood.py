"""A small flood over HTTP: nobody's answer is lost, no block, and every error has OpenAI's shape."""

import asyncio
import sys

import pytest
from helpers import assert_no_block_is_lost, make_engine
from http_flood import KINDS, HttpFlood, blocks_lost, draw_questions
from http_server import serving

from labkit import LADDER
from labkit.results.files import load_file

NUM, AT_ONCE, LIMIT = 120, 40, 30


@pytest.mark.slow
@pytest.mark.parametrize("rung", ["00", "14"])
def test_of_clients_well_and_badly_behaved_nobody_loses_anything(rung):
    options = LADDER[rung].options
    questions = draw_questions(make_engine(options=options, prefix_cache=False), 12, 16)
    with serving(make_engine(options=options, max_blocks_per_layer=64), max_inflight_requests=LIMIT) as door:
        flood = HttpFlood(door.url, questions, memory=lambda: 1)
        asyncio.run(flood.all_at_once(LIMIT))
        assert flood.most_open == LIMIT
        asyncio.run(flood.flood(NUM, AT_ONCE))
        assert rung == "00" or blocks_lost(door.url) == 0
        streaming = door.streaming
    assert sum(flood.ended.values()) == NUM + LIMIT and set(flood.ended) == set(KINDS)
    assert flood.errors and flood.memory == [1]
    assert streaming.num_unfinished == 0 and not door.engine.has_work
    assert_no_block_is_lost(door.engine)


@pytest.mark.nightly
def test_the_command_in_a_flood(soak, tmp_path, capsys):
    soak(f"http --device cpu --open 60 --num-requests 200 --at-once 50 --json {tmp_path}/made.json")
    (sample,) = load_file(tmp_path / "made.json").samples
    assert (sample["blocks_lost"], sample["most_open"], sum(sample["ended"].values())) == (0, 60, 260)
    assert len(sample["memory"]) == 2
    assert not sys.platform.startswith("linux") or min(sample["memory"]) > 2**20
    assert "0 blocks lost" in capsys.readouterr().out
