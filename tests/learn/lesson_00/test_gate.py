"""Lesson 00's gate: right attentions pass, and plausible wrong ones are refused by what they break."""

import pytest
import torch
from gate_tests import gate_tests

from labkit.learn.lesson_00.pieces import contiguous_gather, gather, paged_attention

pytestmark = pytest.mark.slow


class AtOnce:
    """Paged attention of all requests at once, whose pieces can be got wrong one by one."""

    def __call__(self, query, key_new, value_new, k_cache, v_cache, block_table, context_lens, max_len):
        keys = self.gathered(k_cache, key_new, block_table, max_len)
        values = self.gathered(v_cache, value_new, block_table, max_len)
        visible = self.visible(keys.shape[2], context_lens)
        scores = self.scores(query, keys)
        weights = self.weights(self.masked(scores, visible), visible)
        return (weights[:, :, None] @ self.cleared(values, visible))[:, :, 0]

    def gathered(self, cache, new, block_table, max_len):
        blocks = cache[self.table(block_table)[:, : -(-max_len // cache.shape[2])].long()]
        return torch.cat([blocks.transpose(1, 2).flatten(2, 3), new[:, :, None]], dim=2)

    def table(self, block_table):
        return block_table

    def visible(self, num_columns, context_lens):
        visible = torch.arange(num_columns, device=context_lens.device) < context_lens[:, None]
        visible[:, -1] = True
        return visible

    def scores(self, query, keys):
        return (keys @ query[..., None])[..., 0] * query.shape[2] ** -0.5

    def masked(self, scores, visible):
        return scores.masked_fill(~visible[:, None], -torch.inf)

    def weights(self, scores, visible):
        return scores.softmax(dim=-1)

    def cleared(self, values, visible):
        return values.masked_fill(~visible[:, None, :, None], 0)


class MissesItsOwnToken(AtOnce):
    def visible(self, num_columns, context_lens):
        return torch.arange(num_columns, device=context_lens.device) < context_lens[:, None]


class OneSlotTooMany(AtOnce):
    def visible(self, num_columns, context_lens):
        visible = torch.arange(num_columns, device=context_lens.device) <= context_lens[:, None]
        visible[:, -1] = True
        return visible


class MaskedAfterTheSoftmax(AtOnce):
    def masked(self, scores, visible):
        return scores

    def weights(self, scores, visible):
        return scores.softmax(dim=-1) * visible[:, None]


class ScaleForgotten(AtOnce):
    def scores(self, query, keys):
        return (keys @ query[..., None])[..., 0]


class FirstRowForAll(AtOnce):
    def table(self, block_table):
        return block_table[:1].expand_as(block_table)


class BlocksAsTheyLie(AtOnce):
    """Forgets that heads come before slots in a block."""

    def gathered(self, cache, new, block_table, max_len):
        blocks = cache[block_table[:, : -(-max_len // cache.shape[2])].long()]
        B, m, H, block_size, D = blocks.shape
        return torch.cat([blocks.reshape(B, H, m * block_size, D), new[:, :, None]], dim=2)


class NanOfEmptySlots(AtOnce):
    def cleared(self, values, visible):
        return values


class WithoutTheLargest(AtOnce):
    def weights(self, scores, visible):
        exps = scores.exp()
        return exps / exps.sum(dim=-1, keepdim=True)


class KeyAndValueSwapped(AtOnce):
    def __call__(self, query, key_new, value_new, *rest):
        return super().__call__(query, value_new, key_new, *rest)


class WindowOf64(AtOnce):
    def visible(self, num_columns, context_lens):
        columns = torch.arange(num_columns, device=context_lens.device)
        is_near = columns >= context_lens[:, None] - 64
        return super().visible(num_columns, context_lens) & is_near


class In16Bits(AtOnce):
    def weights(self, scores, visible):
        return scores.half().softmax(dim=-1).float()


class Appends(AtOnce):
    """Writes the new token into the cache, which is not its part."""

    def __call__(self, query, key_new, value_new, k_cache, *rest):
        k_cache[2, :, 0] = key_new[0]
        return super().__call__(query, key_new, value_new, k_cache, *rest)


class SqueezesABatchOfOne(AtOnce):
    def __call__(self, *args):
        return super().__call__(*args).squeeze()


CONTIGUOUS = paged_attention(gather=contiguous_gather)
GATHERS_BY_FOUR = paged_attention(
    gather=lambda cache, row, n: torch.stack([cache[row[t // 4], :, t % 4] for t in range(n)], dim=1)
)
TOKENS_FIRST = paged_attention(gather=lambda *args: gather(*args).transpose(0, 1))
WEIGHT_PER_NUMBER = paged_attention(weights=lambda query, keys: (keys * query).softmax(0))
WRONG = {
    MissesItsOwnToken(): r"the new token sees itself: request 0, head 0: its own token has weight 0, exp",
    KeyAndValueSwapped(): r"a key and a value of its own: they are swapped\. key_new comes after the keys",
    OneSlotTooMany(): r"a text ends at its context length: request 0, head 0: slot 2 of block 5, which "
    r"holds no token, has weight 0\.\d+, expected 0\. Request 0 has 6 tokens in the cache, positions 0 to 5",
    MaskedAfterTheSoftmax(): r"weights are a softmax, .* they add up to 0\.\d+\. Divide",
    ScaleForgotten(): r"a score is query · key / √D: the scores were not divided by √D\. D is .*, 32 here",
    CONTIGUOUS: r"row of the table names: request 0, head 0: slot 0 of block 0, .* position 0 is in slot",
    FirstRowForAll(): r"table names: request 1, head 0: slot 0 of block 3, which holds token 0 of request 0",
    BlocksAsTheyLie(): r"token 4 \(slot 0 of block 5\) has weight 0, .* others' weights are wrong, too\. "
    r"A block is \[H, block_size, D\]",
    NanOfEmptySlots(): r"a slot without a token may hold anything: request 0, head 0: with NaN in the empty",
    WithoutTheLargest(): r"scores of any size are right: .* largest weight is nan, expected \d\.\d+\. exp",
    In16Bits(): r"attention computes in float32, .* 0\.\d+, expected 0\.\d+.* a tensor of 16 bits\.",
    WindowOf64(): r"a text may be long: with 200 tokens in the cache the result of head 0 differs",
    Appends(): r"attention only reads: it changed its argument k_cache_layer\.",
    GATHERS_BY_FOUR: r"with the same tokens in blocks of 2 slots it raised IndexError|result of request 0, h",
    SqueezesABatchOfOne(): r"the result is like the query, \[B, H, D\], here \[1, 2, 32\] .* It is \[2, 32\]",
    TOKENS_FIRST: r"gather returns \[H, T, D\], here \[2, 6, 32\]. It gave \[6, 2, 32\]\.",
    WEIGHT_PER_NUMBER: r"weights returns \[T\], here \[7\]. It gave \[7, 32\]\.",
}
RIGHT = {
    "at once": AtOnce(),
    "with PyTorch's softmax": paged_attention(weights=lambda q, k: (k @ q / len(q) ** 0.5).softmax(0)),
    "token by token": paged_attention(
        gather=lambda cache, row, num_tokens: torch.stack(
            [cache[row[t // cache.shape[2]], :, t % cache.shape[2]] for t in range(num_tokens)], dim=1
        )
    ),
}


test_wrong_parts, test_right_parts = gate_tests("00", "attention", WRONG, RIGHT.values())
