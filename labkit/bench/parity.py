"""Two other ways to the same greedy tokens: without any cache, and through transformers."""

from collections.abc import Sequence

import torch

from labkit.model import LanguageModel
from labkit.model.checkpoint import ROOT


@torch.inference_mode()
def dense_tokens(model: LanguageModel, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """Greedy tokens with no KV cache: the whole text is computed again for every token."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        input_ids = torch.tensor([token_ids], device=model.device)
        lengths = torch.tensor([len(token_ids)], device=model.device)
        token_ids.append(model.gpt2.prefill(input_ids, lengths).last_logits.argmax().item())
    return tuple(token_ids[len(prompt) :])


def transformers_tokens(model: LanguageModel, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """Greedy tokens of transformers' own GPT-2 and `generate`, loaded from the same directory."""
    from transformers import GPT2LMHeadModel

    directory = model.name if not (ROOT / model.name).is_dir() else ROOT / model.name
    reference = GPT2LMHeadModel.from_pretrained(directory, dtype=model.dtype).to(model.device).eval()
    reference.generation_config.eos_token_id = None  # go on for num_tokens, whatever comes
    out = reference.generate(
        torch.tensor([list(prompt)], device=model.device),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=model.device),
        max_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=model.tokenizer.eos_token_id,
    )
    return tuple(out[0, len(prompt) :].tolist())
