"""Engines whose prompts are computed in chunks, and prompts for them with the tokens of rung 00."""

from dataclasses import replace
from itertools import pairwise

from helpers import GREEDY, SEEDED, make_engine, tokens_alone

from labkit import LADDER

PACKED = LADDER["13"].options
PROMPTS = [(1, 2, 3), tuple(range(20, 39)), (5, 6), (1, 2, 3, 4), (7,), tuple(range(40, 52))]
EACH_PARAMS = [GREEDY, SEEDED, GREEDY, replace(SEEDED, seed=8), GREEDY, SEEDED]
EXPECTED = [tokens_alone(prompt, params) for prompt, params in zip(PROMPTS, EACH_PARAMS, strict=True)]
LONG = tuple(range(50, 80))


def packed_engine(parts=None, **settings):
    return make_engine(options=PACKED, parts=parts, **settings)


def in_chunks_of(num_tokens, num_ahead=1, **settings):
    """num_ahead: chunks in flight at most while nobody runs, as if graphs had no more rows."""
    budgets = {"prefill_max_tokens": num_tokens * num_ahead, "prefill_chunk_tokens": num_tokens}
    engine = packed_engine(**budgets, **settings)
    engine.prefill.chunk_step.max_tokens = num_tokens
    return engine


def record_chunks(engine):
    """The number of tokens that each prompt has in each chunk, as they are made."""
    counts, make_chunk = [], engine.prefill.make_chunk

    def noted(*about):
        chunk = make_chunk(*about)
        counts.append([end - start for start, end in pairwise(chunk.starts)])
        return chunk

    engine.prefill.make_chunk = noted
    return counts


def joining_ids(engine):
    return [request.request_id for request in engine.scheduler.joining]
