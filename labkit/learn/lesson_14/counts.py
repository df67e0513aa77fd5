"""Lesson 14: texts that begin alike, what is computed of them, and a pool that is full."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median, median_low

import torch

from labkit.engine import InferenceEngine, InferenceSession, SamplingParams
from labkit.errors import OutOfBlocksError
from labkit.kvcache import KVBlockManager, OneTableBlockManager, Prefixes
from labkit.model.tokenizer import Tokenizer

# --- questions behind one system prompt, and a conversation, as token ids ------------------------------

SYSTEM = (
    "You are the fool of a king, and the wisest man at his court. You answer every question in verse, and "
    "never in more than two lines. You speak the truth, but you wrap it in a jest. You name no man who is "
    "alive, and you praise no man who is dead. If you do not know an answer, ask a better question. If the "
    "king asks, begin with his crown. If the queen asks, begin with a rose. To all others you begin with the "
    "weather, for it is the same for all of them.\n"
)
FORMS = (
    "What is {}?",
    "Who speaks of {}?",
    "Where is {} found?",
    "How long does {} last?",
    "What comes after {}?",
    "Tell me of {}.",
    "Is {} for kings?",
    "Who fears {}?",
)
SUBJECTS = ("love", "honour", "sleep", "war", "a crown", "the sea", "winter", "death")
TURNS = tuple(
    form.format(subject)
    for form, subject in zip((*FORMS, *FORMS[:2]), (*SUBJECTS, "a king", "me"), strict=True)
)


def questions(num: int = 64) -> list[str]:
    """So many different questions, 64 at most."""
    return [form.format(subject) for form, subject in product(FORMS, SUBJECTS)][:num]


def behind_system(tokenizer: Tokenizer, asked: Sequence[str]) -> list[tuple[int, ...]]:
    """A prompt per question: the system prompt, and the question."""
    system = tokenizer.encode(SYSTEM)
    return [(*system, *tokenizer.encode(question)) for question in asked]


# --- a cache of blocks alone, without a model ----------------------------------------------------------

Part = Callable[[KVBlockManager], Prefixes]
SYSTEM_TOKENS, BLOCK_SIZE = 128, 16
EVICTIONS = 30


def pool(num_blocks: int, block_size: int) -> KVBlockManager:
    """A pool whose blocks hold one number per token."""
    return OneTableBlockManager(
        num_layers=1, num_heads=1, head_dim=1, block_size=block_size, max_blocks_per_layer=num_blocks
    )


def come_and_go(manager: KVBlockManager, cache: Prefixes, token_ids: Sequence[int]) -> int:
    """A request takes its blocks, evicting what it must, and is kept when it ends: how many tokens were
    found."""
    session = InferenceSession(manager, cache.lookup(token_ids))
    while session.blocks_to_reach(len(token_ids)) > manager.num_free_blocks and cache.evict_one():
        pass
    found = session.num_tokens
    new = torch.zeros(1, 1, len(token_ids) - found, 1)
    session.append_prompt(new, new)
    cache.keep_text(token_ids, session.block_ids_per_layer)
    session.release()
    return found


def evict_us(part: Part, num_blocks: int) -> float:
    """Microseconds that it takes to evict a block from a pool of so many, all of them cached, in texts of
    SYSTEM_TOKENS tokens: the median of some."""
    manager = pool(num_blocks, BLOCK_SIZE)
    cache = part(manager)
    for first in range(0, num_blocks * BLOCK_SIZE, SYSTEM_TOKENS):
        come_and_go(manager, cache, range(first, first + SYSTEM_TOKENS))
    seconds = []
    for _ in range(EVICTIONS):
        began = time.perf_counter()
        cache.evict_one()
        seconds.append(time.perf_counter() - began)
    return 1e6 * median(seconds)


# --- how many tokens of prompts an engine computes, and when -------------------------------------------


@dataclass(frozen=True)
class Served:
    """Requests that an engine has served."""

    prompt_tokens: int
    computed: int  # of those
    waits: tuple[int, ...]  # the prompt tokens computed when each request got its first token
    most_blocks: int  # that running requests and the cache held at once

    @property
    def median_wait(self) -> int:
        """The prompt tokens computed when half of the requests had their first token."""
        return median_low(self.waits)


def serve(engine: InferenceEngine, prompts: Sequence[Sequence[int]], num_new: int = 4) -> Served:
    """Ask for all of these at once, greedily, and count until the last has ended."""
    before = engine.stats().counters.prefill_tokens
    params = SamplingParams(num_new, stop_on_eos=False)
    for prompt in prompts:
        engine.add_request(prompt, params)
    waits: dict[int, int] = {}
    most_blocks = 0
    while engine.has_work:
        outputs = engine.step()
        stats = engine.stats()
        most_blocks = max(most_blocks, stats.blocks_per_layer - stats.free_blocks)
        for output in outputs:
            waits.setdefault(output.request_id, stats.counters.prefill_tokens - before)
    computed = engine.stats().counters.prefill_tokens - before
    return Served(sum(map(len, prompts)), computed, tuple(waits.values()), most_blocks)


def converse(
    engine: InferenceEngine, opening: Sequence[int], asked: Sequence[Sequence[int]], params: SamplingParams
) -> list[int]:
    """A turn per question: how many tokens of its prompt were computed. The prompt is the opening, all turns
    before, and the question."""
    text, computed = tuple(opening), []
    for question in asked:
        text = (*text, *question)
        before = engine.stats().counters.prefill_tokens
        (completion,) = engine.generate([text], params)
        computed.append(engine.stats().counters.prefill_tokens - before)
        text = (*text, *completion.token_ids)
    return computed


def computed_in_words(engine: InferenceEngine) -> str:
    """How many tokens an engine computes of questions behind one system prompt, each after the other, with a
    different text of 80 tokens after every second one; or which is never served, as a cache lets none go."""
    prompts = behind_system(engine.model.tokenizer, questions(8))
    for number in (8, 6, 4, 2):  # from the last on
        prompts.insert(number, tuple(range(100 * (number - 1), 100 * (number - 1) + 80)))
    for number, prompt in enumerate(prompts, start=1):
        try:
            engine.generate([prompt], SamplingParams(1, stop_on_eos=False))
        except OutOfBlocksError:
            return f"prompt {number} of {len(prompts)} is never served: the cache lets no block go"
    return f"computed: {engine.stats().counters.prefill_tokens:,} of {sum(map(len, prompts)):,} prompt tokens"
