"""Lesson 00's gate: right attentions pass, and plausible wrong ones are refused by what they break."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch

from labkit import lab
from labkit.kernels import paged_attention_plain
from labkit.learn import not_attempted
from labkit.learn.gates.gate import Gate
from labkit.learn.lesson_00.gate import GATE
from labkit.learn.lesson_00.pieces import contiguous_gather, gather, paged_attention, weights
from labkit.learn.lesson_00.suspects import without_exp, without_exp_below_the_largest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("00")


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


class OneSlotTooFew(AtOnce):
    def visible(self, num_columns, context_lens):
        visible = torch.arange(num_columns, device=context_lens.device) < context_lens[:, None] - 1
        visible[:, -1] = True
        return visible


class WithoutAMask(AtOnce):
    def visible(self, num_columns, context_lens):
        return torch.ones(len(context_lens), num_columns, dtype=torch.bool, device=context_lens.device)


class FirstLengthForAll(AtOnce):
    def visible(self, num_columns, context_lens):
        return super().visible(num_columns, context_lens[:1].expand_as(context_lens))


class LastByTheLongest(AtOnce):
    """Looks for the new token behind the longest text, and not behind its last block."""

    def visible(self, num_columns, context_lens):
        columns = torch.arange(num_columns, device=context_lens.device)
        return (columns < context_lens[:, None]) | (columns == context_lens.max())


class ZerosInTheSoftmax(AtOnce):
    def masked(self, scores, visible):
        return scores * visible[:, None]


class MaskedAfterTheSoftmax(AtOnce):
    def masked(self, scores, visible):
        return scores

    def weights(self, scores, visible):
        return scores.softmax(dim=-1) * visible[:, None]


class SoftmaxOverHeads(AtOnce):
    def weights(self, scores, visible):
        return scores.softmax(dim=1).nan_to_num()


class WithoutASoftmax(AtOnce):
    def weights(self, scores, visible):
        return scores.masked_fill(~visible[:, None], 0)


class ScaleForgotten(AtOnce):
    def scores(self, query, keys):
        return (keys @ query[..., None])[..., 0]


class DividedByD(AtOnce):
    def scores(self, query, keys):
        return super().scores(query, keys) * query.shape[2] ** -0.5


class ScaledTwiceAsMuch(AtOnce):
    def scores(self, query, keys):
        return 2 * super().scores(query, keys)


class MultipliedByTheRoot(AtOnce):
    def scores(self, query, keys):
        return super().scores(query, keys) * query.shape[2]


class PlaceForBlock(AtOnce):
    """Takes the place in the row for the block's number."""

    def table(self, block_table):
        return torch.arange(block_table.shape[1], device=block_table.device).expand_as(block_table)


class FirstRowForAll(AtOnce):
    def table(self, block_table):
        return block_table[:1].expand_as(block_table)


class RowsReversed(AtOnce):
    def table(self, block_table):
        return block_table.flip(0)


class SortedTable(AtOnce):
    """The same slots for a whole number of blocks, so that only another order of them is wrong."""

    def table(self, block_table):
        return block_table.sort(dim=1).values


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


class KeysAddedUp(AtOnce):
    def __call__(self, query, key_new, value_new, k_cache, v_cache, *rest):
        return super().__call__(query, key_new, key_new, k_cache, k_cache, *rest)


class ValuesCompared(AtOnce):
    def __call__(self, query, key_new, value_new, k_cache, v_cache, *rest):
        return super().__call__(query, value_new, value_new, v_cache, v_cache, *rest)


class OneHeadsKeys(AtOnce):
    def scores(self, query, keys):
        return super().scores(query, keys[:, :1].expand_as(keys))


class OneHeadsQuery(AtOnce):
    def scores(self, query, keys):
        return super().scores(query[:, :1].expand_as(query), keys)


class NewKeyForItsValue(AtOnce):
    def __call__(self, query, key_new, value_new, *rest):
        return super().__call__(query, key_new, key_new, *rest)


class NewValueForItsKey(AtOnce):
    def __call__(self, query, key_new, value_new, *rest):
        return super().__call__(query, value_new, value_new, *rest)


class LastHeadForAll(AtOnce):
    def __call__(self, query, *rest):
        return super().__call__(query, *rest)[:, -1:].expand_as(query)


class OwnTokenOfAnother(AtOnce):
    def gathered(self, cache, new, block_table, max_len):
        return super().gathered(cache, new.flip(0), block_table, max_len)


class Appends(AtOnce):
    """Writes the new token into the cache, which is not its part."""

    def __call__(self, query, key_new, value_new, k_cache, *rest):
        k_cache[2, :, 0] = key_new[0]
        return super().__call__(query, key_new, value_new, k_cache, *rest)


class HeadsFlat(AtOnce):
    def __call__(self, *args):
        return super().__call__(*args).flatten(1)


class ReturnsNothing(AtOnce):
    def __call__(self, *args):
        super().__call__(*args)


class LongestAlone(AtOnce):
    """Reads all texts as if they were the longest, and is right for one request."""

    def visible(self, num_columns, context_lens):
        return super().visible(num_columns, context_lens.max().expand_as(context_lens))


class FourSlotsPerBlock(AtOnce):
    """Takes the lesson's block size for every cache's."""

    def gathered(self, cache, new, block_table, max_len):
        blocks = cache[self.table(block_table)[:, : -(-max_len // 4)].long()]
        return torch.cat([blocks.transpose(1, 2).flatten(2, 3), new[:, :, None]], dim=2)


class SqueezesABatchOfOne(AtOnce):
    def __call__(self, *args):
        return super().__call__(*args).squeeze()


class Unwritten(AtOnce):
    def scores(self, query, keys):
        not_attempted()


class Misspelled(AtOnce):
    def scores(self, query, keys):
        return query @ keys.transposed()


GATHERS_BY_FOUR = paged_attention(
    gather=lambda cache, row, n: torch.stack([cache[row[t // 4], :, t % 4] for t in range(n)], dim=1)
)
EQUAL = paged_attention(weights=lambda query, keys: torch.ones_like(keys[:, 0]) / len(keys))
CONTIGUOUS = paged_attention(gather=contiguous_gather)
TOKENS_FIRST = paged_attention(gather=lambda *args: gather(*args).transpose(0, 1))
ALL_BLOCKS = paged_attention(
    gather=lambda cache, row, num_tokens: gather(cache, row, -(-num_tokens // 4) * 4)
)
WITHOUT_EXP = paged_attention(weights=without_exp)
BELOW_THE_LARGEST = paged_attention(weights=without_exp_below_the_largest)
ROLLED = paged_attention(weights=lambda query, keys: weights(query, keys).roll(1))
OVER_LENGTH = paged_attention(weights=lambda query, keys: (keys @ query / len(keys) ** 0.5).softmax(0))
WEIGHT_PER_NUMBER = paged_attention(weights=lambda query, keys: (keys * query).softmax(0))
WRONG = {
    MissesItsOwnToken(): r"the new token sees itself: request 0, head 0: its own token has weight 0, exp",
    OneSlotTooMany(): r"a text ends at its context length: request 0, head 0: slot 2 of block 5, which "
    r"holds no token, has weight 0\.\d+, expected 0\. Request 0 has 6 tokens in the cache, positions 0 to 5",
    OneSlotTooFew(): r"every token of the text takes part: request 0, head 0: token 5 \(slot 1 of block 5\) "
    r"has weight 0, expected 0\.\d+\. A text of 6 tokens has the positions 0 to 5: none may be cut off\.$",
    FirstLengthForAll(): r"request 1, head 0: token 6 \(slot 2 of block 1\) has weight 0, .* be cut off\.$",
    LastByTheLongest(): r"a text ends at its context length: request 0, head 0: slot 3 of block 5, which",
    WithoutAMask(): r"a text ends at its context length: request 0, head 0: slot 2 of block 5",
    LongestAlone(): r"a text ends at its context length: request 0, head 0: slot 2 of block 5",
    ZerosInTheSoftmax(): r"weights are a softmax, .* add up to 0\.\d+\. .* score -inf before the softmax",
    MaskedAfterTheSoftmax(): r"weights are a softmax, .* they add up to 0\.\d+\. Divide",
    SoftmaxOverHeads(): r"weights are a softmax, .* they add up to \d\.\d+\. Divide",
    WithoutASoftmax(): r"softmax, none is below 0: request 0, head 0: the least is -\d\.\d+\. Take exp",
    WITHOUT_EXP: r"weights are a softmax: exp\(\) was forgotten\. The scores were divided by their sum",
    BELOW_THE_LARGEST: r"softmax: exp\(\) was forgotten\. When the largest score is subtracted, take exp",
    MultipliedByTheRoot(): r"a score is .*: the scores were multiplied by √D, not divided\. D is .*, 32 here",
    ScaleForgotten(): r"a score is query · key / √D: the scores were not divided by √D\. D is .*, 32 here",
    DividedByD(): r"a score is query · key / √D: the scores were divided by D, which is 32 here",
    ScaledTwiceAsMuch(): r"a weight is the softmax of query · key / √D: request 0, head 0: .* weight 0\.\d+, "
    r"expected 0\.\d+\. Weight i is that of key i, and goes with value i\.$",
    ROLLED: r"a weight is the softmax of .* goes with value i\.$",
    EQUAL: r"a score is query · key / √D: all tokens of a text have the same weight",
    PlaceForBlock(): r"row of the table names: request 0, head 0: slot 0 of block 0, which holds token 0 "
    r"of request 2, has weight 0\.\d+, expected 0\. Row 0 of the table begins with \[3, 5\]",
    CONTIGUOUS: r"row of the table names: request 0, head 0: slot 0 of block 0, .* position 0 is in slot",
    FirstRowForAll(): r"table names: request 1, head 0: slot 0 of block 3, which holds token 0 of request 0",
    RowsReversed(): r"table names: request 0, head 0: slot 0 of block 0, which holds token 0 of request 2",
    SortedTable(): r"table names: request 0, head 0: slot 0 of block 0, which holds",
    BlocksAsTheyLie(): r"token 4 \(slot 0 of block 5\) has weight 0, .* others' weights are wrong, too\. "
    r"A block is \[H, block_size, D\]",
    NanOfEmptySlots(): r"a slot without a token may hold anything: request 0, head 0: with NaN in the empty",
    WithoutTheLargest(): r"large scores are right, too: .* the largest weight is nan, expected \d\.\d+\. exp",
    KeysAddedUp(): r"values are added up: keys were\.",
    ValuesCompared(): r"a score compares the query with a key: it was compared with the value\.",
    OneHeadsKeys(): r"each head has its own keys: head 0's were used for all\.",
    OneHeadsQuery(): r"each head has its own query: head 0's was used for all\.",
    NewKeyForItsValue(): r"a key and a value of its own: its key stands for its value\.",
    NewValueForItsKey(): r"a key and a value of its own: its value stands for its key\.",
    LastHeadForAll(): r"each head has its own result: the last head's is in the place of all\.",
    OVER_LENGTH: r"scores were divided by the root of the number of tokens\. D is the size of a head, 32\.",
    OwnTokenOfAnother(): r"the new token sees itself: request 0, head 0: request 2's own new token has",
    Appends(): r"attention only reads: it changed its argument k_cache_layer\.",
    HeadsFlat(): r"the result is like the query, \[B, H, D\], here \[3, 2, 32\] .* It is \[3, 64\] torch",
    FourSlotsPerBlock(): r"the block size is the cache's: it is `k_cache_layer\.shape\[2\]`, which is 64 by",
    GATHERS_BY_FOUR: r"with the same tokens in blocks of 2 slots it raised IndexError|result of request 0, h",
    SqueezesABatchOfOne(): r"the result is like the query, \[B, H, D\], here \[1, 2, 32\] .* It is \[2, 32\]",
    ReturnsNothing(): r"the result is like the query, .* It is NoneType\.",
    TOKENS_FIRST: r"gather returns \[H, T, D\], here \[2, 6, 32\]. It gave \[6, 2, 32\]\.",
    ALL_BLOCKS: r"gather returns \[H, T, D\], here \[2, 6, 32\]. It gave \[2, 8, 32\]\.",
    WEIGHT_PER_NUMBER: r"weights returns \[T\], here \[7\]. It gave \[7, 32\]\.",
    Unwritten(): r"^attention: not attempted yet\.$",
    Misspelled(): r"^attention raised \w+: .*, at `return query @ keys\.transposed\(\)`",
}
RIGHT = {
    "at once": AtOnce(),
    "the package's": paged_attention_plain,
    "in pieces": paged_attention(),
    "with PyTorch's softmax": paged_attention(weights=lambda q, k: (k @ q / len(q) ** 0.5).softmax(0)),
    "token by token": paged_attention(
        gather=lambda cache, row, num_tokens: torch.stack(
            [cache[row[t // cache.shape[2]], :, t % cache.shape[2]] for t in range(num_tokens)], dim=1
        )
    ),
}


@pytest.mark.parametrize("part", WRONG, ids=lambda part: getattr(part, "__name__", type(part).__name__))
def test_a_wrong_attention_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(attention=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT.values(), ids=RIGHT)
def test_a_right_attention_passes_in_whatever_clothes(here, part):
    report = here.check(attention=part)
    assert report.ok and report.text.startswith("attention: right. 3 random schedules, the plain engine's"), (
        report
    )


def test_text_is_compared_with_the_plain_engine(here, monkeypatch):
    monkeypatch.setattr(Gate, "_schedules", lambda self, build, num_moves: None)
    report = replace(GATE, trials=()).check(partial(built, here))
    assert not report.ok and re.search(
        r"text: new token \d+ after '.*' is \d+, but \d+ on the plain engine", report.text
    )


def built(here, model, **settings):
    """An engine of the lesson with the contiguous read."""
    return here.build(model=model, attention=CONTIGUOUS, **settings)


def test_the_pieces_are_the_packages_by_default():
    assert paged_attention.__defaults__ == (gather, weights)
