"""Requests that go on together: the state that everybody sees."""

import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch
from helpers import GREEDY, ahead, assert_no_block_is_lost, make_engine, run, tokens_by_request

from labkit import LADDER, InferenceEngine
from labkit.engine import InferenceSession
from labkit.paths import ROOT
from labkit.watch import profiled_by, replaced

PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4), (7,)]
LONG = 24


def decoding(options, num_steps: int, prompts=PROMPTS, params=GREEDY, **cache_options) -> InferenceEngine:
    """An engine that has decoded so many steps."""
    engine = make_engine(options=options, prefix_cache=False, **cache_options)
    for prompt in prompts:
        engine.add_request(prompt, replace(params, max_new_tokens=LONG))
    for _ in range(1 + num_steps):
        engine.step()
    return engine


@ahead
def test_a_tokens_time_is_within_the_step_that_handed_it_out(options):
    """Also where requests join and end, so that some tokens are handed out with a batch and some alone."""
    engine = make_engine(options=options, max_batch_size=3, prefix_cache=False)
    within, timings = {}, {}
    for number in range(9):
        params = replace(GREEDY, max_new_tokens=(3, 17, 8)[number % 3])
        engine.add_request(PROMPTS[number % len(PROMPTS)], params)
        for _ in range(4 if number < 8 else 80):
            begun = time.perf_counter()
            outputs = engine.step()
            for output in outputs:
                within.setdefault(output.request_id, []).append((begun, time.perf_counter()))
                if output.completion:
                    timings[output.request_id] = output.completion.timing.tokens
    assert len(timings) == 9
    for request_id, moments in timings.items():
        steps = zip(within[request_id], moments, strict=True)
        assert all(begun <= moment <= ended for (begun, ended), moment in steps)


@ahead
def test_a_block_that_somebody_shares_meanwhile_is_copied_before_it_is_written(options):
    engine = decoding(options, 3, block_size=64)
    expected = tokens_by_request(run(decoding(options, 3, block_size=64)))
    session = next(iter(engine.scheduler.running.values()))
    fork, num_tokens = session.fork(), session.num_tokens
    keys, values = fork.dense_kv()
    outputs = [output for _ in range(3) for output in engine.step()]
    assert session.block_ids_per_layer != fork.block_ids_per_layer
    assert all(
        torch.equal(old[:, :, : num_tokens - 1], new[:, :, : num_tokens - 1])  # one was in flight
        for old, new in zip((keys, values), fork.dense_kv(), strict=True)
    )
    fork.release()
    assert tokens_by_request(outputs + run(engine)) == expected
    assert_no_block_is_lost(engine)


def test_a_decode_step_passes_few_files():
    """Also one in which a block is full. The device's part is left out: it is the same on each rung."""
    engine = decoding(LADDER["14"].options, 3, PROMPTS[:3], block_size=8)
    routes: list[list[str]] = []

    def on_event(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        is_part = path.is_relative_to(ROOT / "labkit") and path.parent.name != "watch"
        if event == "call" and is_part and routes[-1][-1:] != [path.stem]:
            routes[-1].append(path.stem)

    with replaced(engine.decode_step, "device_step", lambda _: lambda n, *about: torch.zeros(n).long()):
        for _ in range(8):
            routes.append([])
            with profiled_by(on_event):
                engine.step()
    longest = max(routes, key=len)
    assert "block_books" in longest and len(set(longest)) <= 8 and len(longest) - 1 <= 15
    assert min(map(len, routes)) - 1 <= 12


# --- failures --------------------------------------------------------------------------------------


@ahead
def test_only_requests_whose_block_is_full_are_told_about(monkeypatch, options):
    engine = decoding(options, 3, [(1, 2, 3), (1, 2), (1,)], block_size=8)
    manager, slots, seen, sent = engine.decode_step.kv_manager, engine.decode_step.slots, [], []
    add_blocks, send_rows = manager.add_blocks, slots.send_rows

    def spy(sequences: list[list[list[int]]]) -> bool:
        seen.append(len(sequences))
        return add_blocks(sequences)

    def spy_on_rows(sessions: list[InferenceSession]) -> None:
        sent.append(len(sessions))
        send_rows(sessions)

    monkeypatch.setattr(manager, "add_blocks", spy)
    monkeypatch.setattr(slots, "send_rows", spy_on_rows)
    rooms = [s.num_tokens % 8 for s in engine.scheduler.running.values()]
    lookups = []
    for _ in range(8):
        seen.clear()
        engine.step()
        lookups.append(sum(seen))
    assert len(set(rooms)) == 3 and sorted(lookups) == [0] * 5 + [1] * 3
    assert sent == [1, 1, 1]  # the row of all tables in one message
