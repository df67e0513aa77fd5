"""The cache under random moves, against a model that keeps every session's numbers in plain lists."""

from collections import Counter, OrderedDict
from unittest.mock import patch

import pytest
import torch
from helpers import APPENDS, Boom, failing, kv_numbers, make_manager, manager_state
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from labkit.engine import InferenceSession
from labkit.errors import OutOfBlocksError
from labkit.kvcache import (
    FullBatchWrite,
    IdentityPosWrite,
    IndexedWrite,
    KVBlockManager,
    MutableInfoBlockManager,
    PrefixCache,
)

pytestmark = pytest.mark.slow

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)
ANY = st.integers(0, 99)  # which of the sessions there are
MAX_BATCH = 5
SOME = st.lists(ANY, min_size=1, max_size=MAX_BATCH)
MAX_ENTRIES = 3

somebody_runs = precondition(lambda self: self.numbers)


class CacheMachine(RuleBasedStateMachine):
    """The model: `numbers` has for each session, `entries` for each cached prompt, each token's K/V."""

    @initialize(
        kind=st.sampled_from([KVBlockManager, MutableInfoBlockManager]),
        writer=st.sampled_from([IndexedWrite, FullBatchWrite, IdentityPosWrite]),
        block_size=st.integers(1, 5),
        num_blocks=st.integers(1, 12),
    )
    def start(self, kind, writer, block_size, num_blocks):
        self.manager = make_manager(
            kind,
            block_size=block_size,
            max_blocks_per_layer=num_blocks,
            kv_write=writer(torch.device("cpu")),
        )
        self.prefix_cache = PrefixCache(self.manager, MAX_ENTRIES)
        self.numbers: dict[InferenceSession, list] = {}
        self.token_ids: dict[InferenceSession, tuple[int, ...]] = {}
        self.entries: OrderedDict[tuple[int, ...], list] = OrderedDict()  # least recently used first
        self.num_made = 0  # tokens, so that each has numbers of its own

    def new_tokens(self, num_tokens):
        """Keys and values of new tokens: [L, H, T, D] each, and the model's lists."""
        keys, values = kv_numbers(self.manager, self.num_made, num_tokens)
        self.num_made += num_tokens
        return keys, values, as_lists(keys, values)

    def pick(self, which):
        return list(self.numbers)[which % len(self.numbers)]

    def pick_some(self, which):
        return list(dict.fromkeys(map(self.pick, which)))

    def drop(self, session):
        session.release()
        del self.numbers[session], self.token_ids[session]

    def roll_back(self, *sessions):
        """Undo a failed append; that leaves at most a private copy of a tail that was shared."""
        for session in sessions:
            session.num_tokens = len(self.numbers[session])
            session.roll_back()

    # --- moves -------------------------------------------------------------------------------------

    @rule(prompt=PROMPTS)
    def admit(self, prompt):
        prefix = self.prefix_cache.lookup(prompt)
        known = max((e for e in self.entries if prompt[: len(e)] == e), key=len, default=())
        assert (prefix.token_ids if prefix else ()) == known
        if prefix:
            self.entries.move_to_end(known)
        session = InferenceSession(self.manager, prefix)
        self.numbers[session] = list(self.entries.get(known, ()))
        self.token_ids[session] = known
        needed, free = session.blocks_to_reach(len(prompt)), self.manager.num_free_blocks
        keys, values, numbers = self.new_tokens(len(prompt) - len(known))
        if needed > free:
            with pytest.raises(OutOfBlocksError):
                session.append_prompt(keys, values)
            self.roll_back(session)
            self.drop(session)
            assert self.manager.num_free_blocks == free
        else:
            session.append_prompt(keys, values)
            self.numbers[session] += numbers
            self.token_ids[session] = prompt

    @somebody_runs
    @rule(
        which=SOME,
        append=st.sampled_from(APPENDS),
        token_id=st.integers(0, 1),
        fails_at_layer=st.sampled_from([None, None, 0, 1]),
        fails_in_write=st.booleans(),
    )
    def decode(self, which, append, token_id, fails_at_layer, fails_in_write):
        """One token for each of a batch, or for nobody if it fails."""
        batch = self.pick_some(which)
        keys, values, numbers = self.new_tokens(len(batch))
        for layer_idx in range(self.manager.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in batch]
            free, taken = self.manager.num_free(layer_idx), self.blocks_taken(block_ids_list)
            layer = keys[layer_idx].transpose(0, 1), values[layer_idx].transpose(0, 1)
            if taken > free:
                before = manager_state(self.manager)
                with pytest.raises(OutOfBlocksError):
                    self.append_layer(append, layer_idx, block_ids_list, *layer)
                assert len(batch) > 1 or manager_state(self.manager) == before
                return self.roll_back(*batch)
            write = self.manager.kv_write.write
            if fails_in_write and layer_idx == fails_at_layer:
                write = failing(write)
            try:
                with patch.object(self.manager.kv_write, "write", write):
                    self.append_layer(append, layer_idx, block_ids_list, *layer)
            except Boom:  # no length is ahead of the data
                held = [len(self.numbers[session]) for session in batch]
                assert list(map(self.manager.num_tokens, block_ids_list)) == held
                return self.roll_back(*batch)
            assert free - self.manager.num_free(layer_idx) == taken
            if layer_idx == fails_at_layer:
                return self.roll_back(*batch)
        for session, made in zip(batch, numbers, strict=True):
            session.num_tokens += 1
            self.numbers[session].append(made)
            self.token_ids[session] += (token_id,)

    def append_layer(self, append, layer_idx, block_ids_list, keys, values):
        if append == "append_token":
            for each in zip(block_ids_list, keys, values, strict=True):
                self.manager.append_token(layer_idx, *each)
        else:
            getattr(self.manager, append)(layer_idx, block_ids_list, keys, values)

    def blocks_taken(self, block_ids_list):
        """By one more token for each: a sharer that copies is one sharer less for those after it."""
        copied = Counter()
        taken = 0
        for block_ids in block_ids_list:
            last_id = block_ids[-1] if block_ids else None
            if last_id is None or self.manager.info(last_id).length == self.manager.block_size:
                taken += 1
            elif self.manager.refcount(last_id) - copied[last_id] > 1:
                copied[last_id] += 1
                taken += 1
        return taken

    @somebody_runs
    @rule(which=ANY)
    def fork(self, which):
        session = self.pick(which)
        child = session.fork()
        self.numbers[child] = list(self.numbers[session])
        self.token_ids[child] = self.token_ids[session]

    @somebody_runs
    @rule(which=ANY)
    def cancel(self, which):
        self.drop(self.pick(which))

    @somebody_runs
    @rule(which=ANY, num_tokens=st.integers(0, 12))
    def truncate(self, which, num_tokens):
        session = self.pick(which)
        num_tokens = min(num_tokens, session.num_tokens)
        tail = num_tokens // self.manager.block_size  # the block that is cut, if the cut is inside one
        is_cut = num_tokens < session.num_tokens and num_tokens % self.manager.block_size > 0
        shared = [
            ids for ids in session.block_ids_per_layer if is_cut and self.manager.refcount(ids[tail]) > 1
        ]
        for block_ids in shared:
            before = manager_state(self.manager)
            with pytest.raises(ValueError, match="is shared"):
                self.manager.truncate(block_ids, num_tokens)
            assert manager_state(self.manager) == before
        if not shared:
            self.numbers[session] = self.numbers[session][:num_tokens]
            self.token_ids[session] = self.token_ids[session][:num_tokens]
            self.roll_back(session)

    @somebody_runs
    @rule(which=ANY)
    def insert_prefix(self, which):
        session = self.pick(which)
        key = self.token_ids[session]
        if not key:
            return
        self.prefix_cache.insert(key, session.block_ids_per_layer, torch.zeros(1))
        if key not in self.entries:
            if len(self.entries) == MAX_ENTRIES:
                self.entries.popitem(last=False)
            self.entries[key] = list(self.numbers[session])
        self.entries.move_to_end(key)

    @rule()
    def evict_prefix(self):
        assert self.prefix_cache.evict_one() == bool(self.entries)
        if self.entries:
            self.entries.popitem(last=False)

    # --- what holds after each move ----------------------------------------------------------------

    @invariant()
    def every_block_is_accounted_for(self):
        self.manager.check_integrity([*self.numbers, *self.prefix_cache])

    @invariant()
    def every_session_reads_its_own_numbers(self):
        for session, numbers in self.numbers.items():
            assert as_lists(*session.dense_kv()) == numbers

    @invariant()
    def every_entry_keeps_its_numbers(self):
        assert [entry.token_ids for entry in self.prefix_cache] == list(self.entries)
        for entry, numbers in zip(self.prefix_cache, self.entries.values(), strict=True):
            layers = [self.manager.dense_kv(i, ids) for i, ids in enumerate(entry.block_ids_per_layer)]
            assert as_lists(*(torch.stack(kv) for kv in zip(*layers, strict=True))) == numbers

    def teardown(self):
        for session in list(self.numbers):
            self.drop(session)
        self.prefix_cache.clear()
        self.manager.check_integrity([])
        assert self.manager.num_free_blocks == self.manager.max_blocks_per_layer


def as_lists(keys, values):
    """Keys and values [L, H, T, D] as one nested list a token."""
    return torch.stack([keys, values]).permute(3, 0, 1, 2, 4).tolist()


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=40)
