"""The block prefix cache under random moves, against a model: a dict from texts up to a block's end."""

import pytest
import torch
from helpers import make_manager, num_freeable
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from labkit.engine import InferenceSession
from labkit.kvcache import BlockPrefixCache, OneTableBlockManager

pytestmark = pytest.mark.slow

TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=11).map(tuple)
ANY = st.integers(0, 99)  # which of the sessions there are

somebody_runs = precondition(lambda self: self.texts)


class BlockPrefixMachine(RuleBasedStateMachine):
    """The model: `cached` has the block of each cached text, `used` when it was used last; `texts` has what
    each session holds, and `certain` how many of its tokens no failure takes back.

    Each beginning of a text has keys and values of its own, so that texts that mix would be seen.
    """

    def __init__(self, block_key=BlockPrefixCache.block_key):
        super().__init__()
        self.kind = type("Keyed", (BlockPrefixCache,), {"block_key": block_key})
        self.hashes_well = block_key is BlockPrefixCache.block_key

    @initialize(block_size=st.integers(1, 4), num_blocks=st.integers(3, 14))
    def start(self, block_size, num_blocks):
        self.size = block_size
        self.manager = make_manager(
            OneTableBlockManager, block_size=block_size, max_blocks_per_layer=num_blocks
        )
        self.prefix_cache = self.kind(self.manager)
        self.texts: dict[InferenceSession, tuple[int, ...]] = {}
        self.certain: dict[InferenceSession, int] = {}
        self.cached: dict[tuple[int, ...], int] = {}
        self.used: dict[tuple[int, ...], int] = {}
        self.now = 0

    # --- the model -------------------------------------------------------------------------------------

    def beginnings(self, text):
        """The text up to the end of each full block."""
        return [text[:end] for end in range(self.size, len(text) + 1, self.size)]

    def use(self, text):
        self.now += 1
        self.used |= {each: self.now for each in self.beginnings(text) if each in self.cached}

    def is_in_use(self, text):
        """Whether a session holds the block of a text or of one that goes on from it."""
        held = {i for session in self.texts for i in session.block_ids_per_layer[0]}
        return any(i in held for other, i in self.cached.items() if other[: len(text)] == text)

    def next_to_go(self):
        for _ in range(len(self.cached)):
            first = min(self.cached, key=lambda text: (self.used[text], -len(text)))
            if not self.is_in_use(first):
                return first
            self.use(first)  # its turn has come while it is in use
        return None

    def find(self, text):
        """How many tokens of a text are cached."""
        reusable = [each for each in self.beginnings(text[:-1]) if each in self.cached]
        return len(reusable) * self.size

    def learn(self):
        """Where hashes collide, what is kept is for the cache to say; that it is right is checked below."""
        self.cached = {entry.text: entry.block_id for entry in self.prefix_cache}
        self.used = {text: self.used.get(text, 0) for text in self.cached}

    # --- keys and values -------------------------------------------------------------------------------

    def numbers(self, text):
        """Keys and values [L, H, T, D], made of each token and all before it."""
        places = [int("1" + "".join(map(str, text[: t + 1])), 2) for t in range(len(text))]
        L, _, H, _, D = self.manager.k_cache.shape
        keys = torch.tensor(places).float()[None, None, :, None].expand(L, H, len(text), D)
        return keys, -keys

    def assert_holds(self, block_ids, text, start=0):
        for layer_idx in range(self.manager.num_layers):
            stored = self.manager.dense_kv(layer_idx, block_ids)
            for have, made in zip(stored, self.numbers(text), strict=True):
                assert torch.equal(have, made[layer_idx][:, start:])

    def append(self, session, text):
        keys, values = self.numbers((*self.texts[session], *text))
        held = session.num_tokens
        session.append_prompt(keys[:, :, held:], values[:, :, held:])
        self.texts[session] += text

    def chosen(self, which):
        return list(self.texts)[which % len(self.texts)]

    # --- moves -----------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.texts) < 4)
    @rule(text=TEXTS, is_told=st.booleans())
    def join(self, text, is_told):
        found = self.prefix_cache.lookup(text)
        num_found = found.num_tokens if found else 0
        assert num_found == self.find(text)
        self.use(text[:num_found])
        session = InferenceSession(self.manager, found)
        if session.blocks_to_reach(len(text)) > self.manager.num_free_blocks:
            session.release()
            return
        self.texts[session] = text[:num_found]
        self.append(session, text[num_found:])
        self.certain[session] = len(text)
        if is_told:
            self.tell(session)

    @somebody_runs
    @rule(which=ANY, token_id=st.integers(0, 1))
    def grow(self, which, token_id):
        """By a token that a failure can take back."""
        session = self.chosen(which)
        if session.blocks_to_reach(session.num_tokens + 1) <= self.manager.num_free_blocks:
            self.append(session, (token_id,))

    @somebody_runs
    @rule(which=ANY)
    def fail(self, which):
        session = self.chosen(which)
        session.num_tokens = self.certain[session]
        session.roll_back()
        self.texts[session] = self.texts[session][: session.num_tokens]

    @somebody_runs
    @rule(which=ANY)
    def succeed(self, which):
        session = self.chosen(which)
        self.certain[session] = session.num_tokens

    @somebody_runs
    @rule(which=ANY)
    def tell_of(self, which):
        self.tell(self.chosen(which))

    def tell(self, session):
        text = self.texts[session][: self.certain[session]]
        self.prefix_cache.keep_text(text, session.block_ids_per_layer)
        if not self.hashes_well:
            return self.learn()
        for place, each in enumerate(self.beginnings(text)):
            self.cached.setdefault(each, session.block_ids_per_layer[0][place])
        self.use(text)

    @somebody_runs
    @rule(which=ANY, is_kept=st.booleans())
    def leave(self, which, is_kept):
        session = self.chosen(which)
        if is_kept:
            self.tell(session)
        session.release()
        del self.texts[session], self.certain[session]

    @somebody_runs
    @rule(which=ANY)
    def turn_out_broken(self, which):
        session = self.chosen(which)
        held = {*session.block_ids_per_layer[0]}
        gone = [text for text, block_id in self.cached.items() if block_id in held]
        self.prefix_cache.forget(session.block_ids_per_layer)
        self.cached = {
            text: i for text, i in self.cached.items() if not any(text[: len(g)] == g for g in gone)
        }

    @rule()
    def evict(self):
        free, num_entries = self.manager.num_free_blocks, len(self.prefix_cache)
        goes = self.next_to_go()
        assert self.prefix_cache.evict_one() == (goes is not None)
        assert (
            self.manager.num_free_blocks - free == (goes is not None) == num_entries - len(self.prefix_cache)
        )
        if not self.hashes_well:
            return self.learn()
        if goes:
            del self.cached[goes]

    @rule()
    def clear(self):
        self.prefix_cache.clear()
        self.cached = {}

    # --- what holds after each move --------------------------------------------------------------------

    @invariant()
    def every_block_is_accounted_for(self):
        self.manager.check_integrity([*self.texts, *self.prefix_cache])

    @invariant()
    def what_is_cached_is_what_the_model_has(self):
        assert {entry.text: entry.block_id for entry in self.prefix_cache} == self.cached

    @invariant()
    def every_block_has_the_keys_and_values_of_its_text(self):
        for entry in self.prefix_cache:
            self.assert_holds(entry.block_ids_per_layer[0], entry.text, entry.start)
        for session, text in self.texts.items():
            self.assert_holds(session.block_ids_per_layer[0], text)

    @invariant()
    def each_comes_before_its_parent(self):
        texts = [entry.text for entry in self.prefix_cache]
        for place, text in enumerate(texts):
            assert len(text) == self.size or text[: -self.size] in texts[place + 1 :]

    @invariant()
    def what_is_reclaimable_is_what_nobody_needs(self):
        idle = [text for text in self.cached if not self.is_in_use(text)]
        assert num_freeable(self.prefix_cache) == len(idle)

    def teardown(self):
        for session in self.texts:
            session.release()
        while self.prefix_cache.evict_one():
            pass
        assert self.manager.num_free_blocks == self.manager.max_blocks_per_layer


KEYS = {
    "good hashes": BlockPrefixCache.block_key,
    "one hash": lambda self, parent_key, token_ids: 0,
    "three hashes": lambda self, parent_key, token_ids: hash((parent_key, token_ids)) % 3,
    "of its own ids": lambda self, parent_key, token_ids: hash(token_ids),
}


@pytest.mark.parametrize("block_key", KEYS.values(), ids=KEYS)
def test_a_block_is_found_if_and_only_if_its_text_is_cached(block_key):
    run_state_machine_as_test(
        lambda: BlockPrefixMachine(block_key), settings=settings(max_examples=100, stateful_step_count=40)
    )
