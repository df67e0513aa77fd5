"""What holds on every rung: the same tokens as below, and the same keys and values in the cache."""

from dataclasses import dataclass

import numpy as np
import pytest
from helpers import SEEDED, assert_no_block_is_lost, every_engine, make_engine, tokens_of

from labkit import LADDER, InferenceEngine, SamplingParams
from labkit.bench import dense_tokens, transformers_tokens

pytestmark = pytest.mark.slow

# --- the trained model -----------------------------------------------------------------------------

RAGGED = ["To be, or not", "O", "The king is", "Romeo, wherefore art thou", "To be"]
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def ragged(tiny) -> list[list[int]]:
    """Prompts of many lengths; two of them come twice."""
    prompts = [tiny.tokenizer.encode(text) for text in RAGGED]
    return [*prompts, prompts[0], prompts[3]]


@pytest.fixture(scope="module")
def greedy_tokens(tiny, ragged) -> list[tuple[int, ...]]:
    dense = dense_tokens(tiny, ragged, NUM_TOKENS)
    assert dense == transformers_tokens(tiny, ragged, NUM_TOKENS)
    return dense


def trained_engine(tiny, options) -> InferenceEngine:
    """Small blocks, and each prompt admitted by itself, so that the second of two finds the first."""
    return make_engine(tiny, options, block_size=4, max_batch_size=8, prefill_max_batch_size=1)


@every_engine
def test_greedy_tokens_are_those_of_the_dense_model_and_of_transformers(tiny, ragged, greedy_tokens, options):
    engine = trained_engine(tiny, options)
    params = SamplingParams(NUM_TOKENS, stop_on_eos=False)
    assert tokens_of(engine.generate(ragged, params)) == greedy_tokens
    paths = engine.stats().append_paths
    assert paths["boundary"] > 0 and paths["in_place"] > 0
    assert (paths.get("copy_on_write", 0) > 0) == (options.prefixes == "whole_prompts")
    assert_no_block_is_lost(engine)


# --- random models, schedules and pools ------------------------------------------------------------


@dataclass(frozen=True)
class Arrival:
    """A request, the step in which it comes, and after how many more it is cancelled if it has not ended."""

    prompt: tuple[int, ...]
    params: SamplingParams
    at: int = 0
    stays: int = 99


def trace(engine: InferenceEngine, arrivals: list[Arrival]) -> list:
    """After each step: what was handed out, and all keys and values of each running request, as bytes.

    An engine that is a step ahead hands out in other steps, and its cache holds more: of it, what each
    request was handed out, and how it ended.
    """
    due: dict[int, list[int]] = {}  # requests by the step in which they are cancelled
    steps = []
    while engine.has_work or len(steps) <= max(a.at for a in arrivals):
        assert len(steps) < 300
        for arrival in arrivals:
            if arrival.at == len(steps):
                request_id = engine.add_request(arrival.prompt, arrival.params)
                due.setdefault(arrival.at + arrival.stays, []).append(request_id)
        live = {request.request_id for request in engine.scheduler.requests}
        for request_id in live.intersection(due.get(len(steps), ())):
            engine.cancel(request_id)
        outputs = [(o.request_id, o.token_id, o.completion is None) for o in engine.step()]
        engine.check_integrity()
        running = {r.request_id: s.dense_kv() for r, s in engine.scheduler.running.items()}
        cached = {i: [t.numpy().tobytes() for t in kv] for i, kv in running.items()}
        steps.append((outputs, cached))
    return steps


def by_request(steps: list) -> dict[int, list]:
    """What each request was handed out: of those that nobody cancelled."""
    handed_out: dict[int, list] = {}
    for outputs, _ in steps:
        for request_id, token_id, goes_on in outputs:
            handed_out.setdefault(request_id, []).append((token_id, goes_on))
    return {i: tokens for i, tokens in handed_out.items() if not tokens[-1][1]}


def assert_same(steps: list, expected: list, options) -> None:
    """The same tokens in the same steps, and the same bytes; where layers are fused, numbers are rounded
    elsewhere, so there the cache is close."""
    if options.layer_kernels == "separate":
        assert steps == expected
        return
    assert [outputs for outputs, _ in steps] == [outputs for outputs, _ in expected]
    for (_, cached), (_, wanted) in zip(steps, expected, strict=True):
        assert cached.keys() == wanted.keys()
        for request_id, kv in cached.items():
            for have, want in zip(kv, wanted[request_id], strict=True):
                have, want = (np.frombuffer(numbers, dtype=np.float32) for numbers in (have, want))
                np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)


# One schedule in which everything happens: how it can be seen that the paths were taken.
BUSY = [
    Arrival((1, 2, 3), SamplingParams(9)),
    Arrival((1, 2, 3), SamplingParams(9)),
    Arrival((1, 2, 3), SEEDED),
    Arrival(tuple(range(20, 31)), SamplingParams(6), at=1, stays=3),
    Arrival((1, 2, 3, 9), SEEDED, at=2),
    Arrival((7,), SamplingParams(1), at=3),
    Arrival((7, 8, 9, 10), SamplingParams(9), at=3),
]
WRITES = {
    ("per_token", "indexed"): set(),
    ("batched", "indexed"): {"indexed"},
    ("batched", "full_batch"): {"full_batch", "generic"},
    ("batched", "identity_pos"): {"full_batch", "identity_pos"},
    ("batched_fast_path", "indexed"): {"indexed"},
    # Blocks of 2: where two positions differ, one request meets a boundary and is not on the fast path.
    ("batched_fast_path", "identity_pos"): {"full_batch", "generic"},
}


def busy_engine(options) -> InferenceEngine:
    return make_engine(None, options, block_size=2, max_blocks_per_layer=17, prefill_max_batch_size=1)


@pytest.fixture(scope="module")
def on_rung_00() -> list:
    return trace(busy_engine(LADDER["00"].options), BUSY)


@every_engine
def test_a_schedule_in_which_everything_happens_is_the_same_and_takes_the_rungs_paths(on_rung_00, options):
    """Copies, where blocks are shared before they are full, boundaries, a preemption, evictions and a
    cancellation; each way to write."""
    engine = busy_engine(options)
    made = trace(engine, BUSY)
    if options.readback == "at_once":
        assert_same(made, on_rung_00, options)
    else:
        assert by_request(made) == by_request(on_rung_00)
    stats = engine.stats()
    paths = stats.append_paths
    assert paths["boundary"] > 0 and paths["in_place"] > 0
    assert (paths.get("copy_on_write", 0) > 0) == (options.prefixes == "whole_prompts")
    assert stats.counters.preemptions > 0 and stats.prefix_evictions > 0
    assert stats.counters.finished == {"length": 6, "cancelled": 1}
    written = set(paths) - {"copy_on_write", "boundary", "in_place"}
    is_resident = options.block_tables == "resident"
    assert written == ({options.kv_write} if is_resident else WRITES[options.kv_append, options.kv_write])
    assert_no_block_is_lost(engine)
