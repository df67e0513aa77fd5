"""Two other ways to the same greedy tokens: without any cache, and through transformers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from labkit.model import LanguageModel
from labkit.model.checkpoint import ROOT

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel


@torch.inference_mode()
def dense_tokens(
    model: LanguageModel, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[tuple[int, ...]]:
    """Greedy tokens with no KV cache: the whole text is computed again for every token."""
    completed = []
    for prompt in prompts:
        token_ids = list(prompt)
        for _ in range(num_tokens):
            input_ids = torch.tensor([token_ids], device=model.device)
            lengths = torch.tensor([len(token_ids)], device=model.device)
            token_ids.append(model.gpt2.prefill(input_ids, lengths).last_logits.argmax().item())
        completed.append(tuple(token_ids[len(prompt) :]))
    return completed


def transformers_tokens(
    model: LanguageModel, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[tuple[int, ...]]:
    """Greedy tokens of transformers' own GPT-2 and `generate`, one prompt at a time."""
    reference = transformers_model(model)
    reference.generation_config.eos_token_id = None  # go on for num_tokens, whatever comes
    completed = []
    for prompt in prompts:
        input_ids = torch.tensor([list(prompt)], device=model.device)
        out = reference.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=model.tokenizer.eos_token_id,
        )
        completed.append(tuple(out[0, len(prompt) :].tolist()))
    return completed


def transformers_model(model: LanguageModel) -> "GPT2LMHeadModel":
    """The same checkpoint as transformers loads it, without its progress bar."""
    from transformers import GPT2LMHeadModel
    from transformers.utils import logging

    directory = ROOT / model.name if (ROOT / model.name).is_dir() else model.name
    bar_was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        reference = GPT2LMHeadModel.from_pretrained(directory, dtype=model.dtype)
    finally:
        if bar_was_on:
            logging.enable_progress_bar()
    return reference.to(model.device).eval()
