"""Lesson 14: how many tokens of prompts an engine computes, and when."""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.engine import InferenceEngine, SamplingParams
from labkit.errors import OutOfBlocksError
from labkit.kvcache import BlockPrefixCache
from labkit.learn.lesson_14.pressure import come_and_go, pool
from labkit.learn.lesson_14.texts import behind_system, questions
from labkit.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class Served:
    """Requests that an engine has served: the tokens of their prompts, and how many it computed.

    waits: for each request, in order, the prompt tokens that the engine had computed, for all of them, when
        this one got its first token. most_blocks: that running requests and the cache held at once.
    """

    prompt_tokens: int
    computed: int
    waits: tuple[int, ...]
    most_blocks: int

    @property
    def median_wait(self) -> int:
        """The prompt tokens computed when half of the requests had their first token."""
        return sorted(self.waits)[(len(self.waits) - 1) // 2]


def serve(engine: InferenceEngine, prompts: Sequence[Sequence[int]], num_new: int = 4) -> Served:
    """Ask for all of these at once, greedily, and count until the last has ended."""
    before = engine.stats().counters.prefill_tokens
    params = SamplingParams(num_new, stop_on_eos=False)
    request_ids = [engine.add_request(prompt, params) for prompt in prompts]
    waits: dict[int, int] = {}
    most_blocks = 0
    while engine.has_work:
        outputs = engine.step()
        stats = engine.stats()
        most_blocks = max(most_blocks, stats.blocks_per_layer - stats.free_blocks)
        for output in outputs:
            waits.setdefault(output.request_id, stats.counters.prefill_tokens - before)
    return Served(
        sum(map(len, prompts)),
        engine.stats().counters.prefill_tokens - before,
        tuple(waits[request_id] for request_id in request_ids),
        most_blocks,
    )


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation: the tokens of its prompt, which is all that was said so far and a question,
    and how many of them were computed."""

    prompt_tokens: int
    computed: int


def converse(
    engine: InferenceEngine, opening: Sequence[int], asked: Sequence[Sequence[int]], params: SamplingParams
) -> list[Turn]:
    """A turn per question, each behind all turns before it, and those behind the opening."""
    text, turns = tuple(opening), []
    for question in asked:
        text = (*text, *question)
        before = engine.stats().counters.prefill_tokens
        (completion,) = engine.generate([text], params)
        turns.append(Turn(len(text), engine.stats().counters.prefill_tokens - before))
        text = (*text, *completion.token_ids)
    return turns


def visitors(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Questions behind one system prompt, and after every other one somebody else's text of 80 tokens, each
    another."""
    prompts = []
    for number, prompt in enumerate(behind_system(tokenizer, questions(8))):
        prompts.append(prompt)
        if number % 2:
            prompts.append(tuple(range(100 * number, 100 * number + 80)))
    return prompts


def computed_in_words(engine: InferenceEngine) -> str:
    """How many tokens of the visitors' prompts an engine computes, when they come one after another; or which
    of them is never served, for a cache may hold blocks and let none go."""
    prompts = visitors(engine.model.tokenizer)
    for number, prompt in enumerate(prompts, start=1):
        try:
            engine.generate([prompt], SamplingParams(1, stop_on_eos=False))
        except OutOfBlocksError:
            return f"prompt {number} of {len(prompts)} waits for ever: the cache lets no block go"
    return f"computed: {engine.stats().counters.prefill_tokens:,} of {sum(map(len, prompts)):,} prompt tokens"


def computed_of(prompts: Sequence[Sequence[int]], block_size: int) -> int:
    """How many tokens of prompts that come one after another are computed, with blocks of this size, if
    nothing is evicted: counted by a cache alone, without a model."""
    manager = pool(sum(len(prompt) // block_size + 1 for prompt in prompts), block_size)
    cache = BlockPrefixCache(manager)
    return sum(len(prompt) - come_and_go(manager, cache, prompt) for prompt in prompts)
