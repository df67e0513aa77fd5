"""labkit's GPT-2 against transformers', and against itself: padded and continued."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2LMHeadModel

from labkit import LanguageModel, load_model
from labkit.model import GPT2, PastKV
from labkit.model.prefill_attention import CausalAttention

# (vocab_size, n_positions, n_embd, n_layer, n_head, the rest)
SHAPES = {
    "head size 12, odd vocabulary": (97, 64, 48, 2, 4, {}),
    "untied head": (257, 64, 64, 3, 8, {"tie_word_embeddings": False}),
    "narrow MLP, one head": (97, 80, 36, 2, 1, {"n_inner": 50}),
    "five layers, head size 7": (2048, 96, 42, 5, 6, {}),
    "another epsilon": (500, 64, 32, 2, 2, {"layer_norm_epsilon": 1e-3}),
    "the other name of the same gelu": (97, 64, 32, 2, 2, {"activation_function": "gelu_pytorch_tanh"}),
}
LENGTHS = [7, 1, 19, 12]


class Pair(NamedTuple):
    """One checkpoint, loaded by labkit and by transformers."""

    model: LanguageModel
    hf: GPT2LMHeadModel

    @property
    def network(self) -> GPT2:
        return self.model.network


@pytest.fixture(scope="module", params=["shipped", *SHAPES])
def pair(request, tmp_path_factory, random_hf, save_checkpoint, tiny, tiny_hf) -> Pair:
    if request.param == "shipped":
        return Pair(tiny, tiny_hf)
    vocab_size, n_positions, n_embd, n_layer, n_head, rest = SHAPES[request.param]
    hf = random_hf(
        vocab_size=vocab_size, n_positions=n_positions, n_embd=n_embd, n_layer=n_layer, n_head=n_head, **rest
    )
    return Pair(load_model(save_checkpoint(hf, tmp_path_factory.mktemp("checkpoint"))), hf)


def random_prompts(gpt2: GPT2, lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(gpt2.config.vocab_size, (n,), generator=generator) for n in lengths]


def prefill_ragged(gpt2: GPT2, prompts: list[Tensor], past: PastKV | None = None):
    lengths = torch.tensor([len(p) for p in prompts])
    return gpt2.prefill(pad_sequence(prompts, batch_first=True), lengths, past)


@torch.inference_mode()
def all_logits(gpt2: GPT2, input_ids: Tensor) -> Tensor:
    """Logits [B, T, V] after every token of [B, T], without the cache."""
    positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
    return gpt2.lm_head(gpt2(input_ids, positions, CausalAttention(input_ids < 0)))


def assert_near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_logits_equal_transformers_at_every_position(pair: Pair):
    """To the last that there is, but for the shipped model's."""
    longest = min(pair.network.config.n_positions, 96)
    input_ids = torch.stack(random_prompts(pair.network, [longest] * 3))
    with torch.inference_mode():
        expected = pair.hf(input_ids).logits
    assert_near(all_logits(pair.network, input_ids), expected)


def padded_past(gpt2: GPT2, prefixes: list[Tensor], filler: float) -> PastKV:
    """The prefixes' keys and values, `filler` where a row has none."""
    config = gpt2.config
    longest = max(map(len, prefixes))
    shape = (config.n_layer, len(prefixes), config.n_head, longest, config.head_dim)
    past = PastKV(
        torch.full(shape, filler), torch.full(shape, filler), torch.tensor([len(p) for p in prefixes])
    )
    for b, prefix in enumerate(prefixes):
        if len(prefix):
            computed = prefill_ragged(gpt2, [prefix])
            past.keys[:, b, :, : len(prefix)] = computed.keys[:, 0]
            past.values[:, b, :, : len(prefix)] = computed.values[:, 0]
    return past


@pytest.mark.parametrize("held", [None, [0, 0, 18, 5], [6, 0, 1, 11]])
def test_a_padded_row_that_begins_or_continues_gives_what_its_prompt_does_alone(pair: Pair, held):
    prompts, starts = random_prompts(pair.network), held or [0] * len(LENGTHS)
    prefixes = [prompt[:n] for prompt, n in zip(prompts, starts, strict=True)]
    past = padded_past(pair.network, prefixes, filler=100.0) if held else None
    made = prefill_ragged(pair.network, [p[n:] for p, n in zip(prompts, starts, strict=True)], past)
    for b, (prompt, n) in enumerate(zip(prompts, starts, strict=True)):
        alone = prefill_ragged(pair.network, [prompt])
        assert_near(made.last_logits[b], alone.last_logits[0])
        for many, one in ((made.keys, alone.keys), (made.values, alone.values)):
            assert_near(many[:, b, :, : len(prompt) - n], one[:, 0, :, n:])


@pytest.mark.parametrize("has_past", [False, True])
def test_a_prefill_keeps_to_attention_that_makes_no_plan_for_each_shape(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, has_past: bool
):
    """cuDNN's does, in each thread anew. What others may use is as before."""
    seen = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def spy(*args: Tensor, **kwargs: object) -> Tensor:
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attention(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    input_ids, lengths = torch.tensor([[1, 2, 3]]), torch.tensor([3])
    past = None
    if has_past:
        held = tiny.network.prefill(input_ids, lengths)
        past = PastKV(held.keys, held.values, lengths)
        seen.clear()
    tiny.network.prefill(input_ids, lengths, past)
    assert seen == [False] * tiny.config.n_layer
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.slow
def test_pads_past_the_last_position_do_no_harm(pair: Pair):
    n = pair.network.config.n_positions
    long, short = random_prompts(pair.network, [n, 9])
    past = padded_past(pair.network, [long[: n - 1], short[:0]], filler=0.0)
    rest = prefill_ragged(pair.network, [long[n - 1 :], short], past=past)
    assert_near(rest.last_logits[0], prefill_ragged(pair.network, [long]).last_logits[0])
    assert_near(rest.last_logits[1], prefill_ragged(pair.network, [short]).last_logits[0])
