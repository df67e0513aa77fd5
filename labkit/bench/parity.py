"""Two other ways to an engine's greedy tokens: without any cache, and through transformers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch

from labkit.bench.peers.others import quiet_transformers
from labkit.engine import InferenceEngine, SamplingParams
from labkit.model import LanguageModel
from labkit.model.checkpoint import find_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.inference_mode()
def dense_tokens(
    model: LanguageModel, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[tuple[int, ...]]:
    """Each prompt's next `num_tokens` greedy tokens with no KV cache: each recomputes the whole text."""
    completed = []
    for prompt in prompts:
        token_ids = list(prompt)
        for _ in range(num_tokens):
            input_ids = torch.tensor([token_ids], device=model.device)
            lengths = torch.tensor([len(token_ids)], device=model.device)
            token_ids.append(int(model.network.prefill(input_ids, lengths).last_logits.argmax()))
        completed.append(tuple(token_ids[len(prompt) :]))
    return completed


def transformers_tokens(
    model: LanguageModel, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[tuple[int, ...]]:
    """Each prompt's next `num_tokens` greedy tokens by transformers' own model, one prompt at a time."""
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


def parity_table(
    engines: Mapping[str, InferenceEngine], prompts: Sequence[str], num_tokens: int
) -> pd.DataFrame:
    """For each prompt, whether every engine's greedy tokens are the dense reference's and transformers'.

    engines: by name, of one model; in float32, or ties may break either way. All prompts run in one batch.
    """
    params = SamplingParams(num_tokens, stop_on_eos=False)
    made = {name: engine.generate(prompts, params) for name, engine in engines.items()}
    model = next(iter(engines.values())).model
    ids = [model.tokenizer.encode(prompt) for prompt in prompts]
    references = {
        "dense": dense_tokens(model, ids, num_tokens),
        "transformers": transformers_tokens(model, ids, num_tokens),
    }
    rows = {
        f"{name} = {reference}": [done.token_ids == r for done, r in zip(outputs, expected, strict=True)]
        for name, outputs in made.items()
        for reference, expected in references.items()
    }
    return pd.DataFrame(rows, index=[repr(prompt[:20]) for prompt in prompts])


def transformers_model(model: LanguageModel) -> "PreTrainedModel":
    """The model's checkpoint, loaded by transformers in its dtype and on its device, with no progress bar; of
    random weights, a copy."""
    if model.has_random_weights:
        return model.network.as_transformers().to(model.device, model.dtype)
    from transformers import AutoModelForCausalLM

    with quiet_transformers():
        source = find_folder(model.name) or model.name
        reference = AutoModelForCausalLM.from_pretrained(source, dtype=model.dtype)
    return reference.to(model.device).eval()
