"""How far an engine's logits are from exact ones, beside transformers' own in the same dtype."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers import make_engine
from torch import Tensor

from labkit import LADDER, EngineOptions, InferenceEngine, SamplingParams, load_model
from labkit.ladder import FINISHED
from labkit.model import LanguageModel
from labkit.model.llama import LlamaConfig, Qwen3Config
from labkit.model.small import SPREAD, small_model

NUM_STEPS = 24
LEAST_PROMPTS = 16  # one of them makes few rows, whose errors differ much from draw to draw
OUTLIERS = (5, 133, 700)  # places in a hidden state of 768


def with_outliers(model: LanguageModel) -> LanguageModel:
    """The model with a few hidden dimensions that are hundreds of times larger than the others, as those of
    trained GPT-2: set by the positions, raised by each layer's MLP, and scaled down by each norm."""
    model = replace(model, network=copy.deepcopy(model.network))
    network = model.network
    with torch.no_grad():
        for place, size in zip(OUTLIERS, (40.0, -25.0, 15.0), strict=True):
            network.wpe.weight[:, place] += size
            network.ln_f.weight[place] = 0.05
            for block in network.h:
                block.mlp.c_proj.bias[place] += size / 4
                block.ln_1.weight[place] = block.ln_2.weight[place] = 0.05
    return model


def draw_prompts(num_requests: int, vocab_size: int) -> list[list[tuple[int, ...]]]:
    """Batches of so many equally long prompts, LEAST_PROMPTS or more in all."""
    numbers = torch.Generator().manual_seed(0)
    return [
        [tuple(torch.randint(vocab_size, (40,), generator=numbers).tolist()) for _ in range(num_requests)]
        for _ in range(-(-LEAST_PROMPTS // num_requests))
    ]


def decode_logits(engine: InferenceEngine, batches: list[list[tuple[int, ...]]]) -> tuple[Tensor, Tensor]:
    """The texts [B, T] that an engine makes of batches of prompts, one batch after the other, and the logits
    [NUM_STEPS, B, V] of their decode steps, in float64."""
    params = SamplingParams(max_new_tokens=NUM_STEPS + 1, stop_on_eos=False)
    texts, logits = [], []
    for prompts in batches:
        noted: list[Tensor] = []
        engine.decode_step.device_step.tell_logits = lambda each, noted=noted: noted.append(each.clone())
        texts += [[*c.prompt_token_ids, *c.token_ids] for c in engine.generate(prompts, params)]
        logits.append(torch.stack(noted[:NUM_STEPS]).double())
    return torch.tensor(texts), torch.cat(logits, 1)


def rms_of_errors(found: Tensor, exact: Tensor) -> float:
    """The root of the mean square of what is wrong with logits [..., V], but for what all of a row share."""
    errors = found - exact
    return (errors - errors.mean(-1, keepdim=True)).square().mean().sqrt().item()


def assert_no_further_than_transformers(
    model: LanguageModel, options: EngineOptions, num_requests: int, dtype: torch.dtype
) -> None:
    """An engine's logits are no further from exact ones than those of transformers in the same dtype."""
    budgets = {"prefill_max_batch_size": num_requests, "prefill_max_tokens": 2**14}
    sizes = {"block_size": 64, "prefix_cache": False, "max_batch_size": num_requests, **budgets}
    eager = replace(options, launch="eager")  # so that logits can be seen
    engine = make_engine(model, eager, device="cuda", dtype=dtype, **sizes)
    texts, ours = decode_logits(engine, draw_prompts(num_requests, model.config.vocab_size))
    texts, theirs = texts.to(engine.device), model.network.as_transformers().to(engine.device)
    with torch.inference_mode():
        decoded = slice(40, 40 + NUM_STEPS)
        half = copy.deepcopy(theirs).to(dtype)(texts).logits[:, decoded].transpose(0, 1).double()
        exact = theirs.double()(texts).logits[:, decoded].transpose(0, 1)
    assert rms_of_errors(ours, exact) <= 1.05 * rms_of_errors(half, exact)


@pytest.mark.cuda
@pytest.mark.parametrize("num_requests", [1, 8, 64])  # one kernel, weights asked for ahead, two lanes
@pytest.mark.parametrize("is_trained_like", [False, True], ids=["random", "outliers"])
def test_on_a_gpu_logits_are_no_further_from_exact_ones_than_those_of_transformers(
    num_requests: int, is_trained_like: bool
):
    model = load_model("random:gpt2")
    if is_trained_like:
        model = with_outliers(model)
    assert_no_further_than_transformers(model, FINISHED.options, num_requests, torch.float16)
    hidden = model.network.wpe.weight.abs().max().item()
    assert (hidden > 30) == is_trained_like  # else nothing was tried


LLAMAS = {
    "llama": LlamaConfig(
        2048, 512, 576, 1536, 4, 9, 3, 64, rms_norm_eps=1e-5
    ),  # as SmolLM2-135M's, but shallow
    "qwen3": Qwen3Config(2048, 512, 1024, 3072, 4, 16, 8, 128),  # as those of Qwen3-0.6B
}


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_requests", [1, 8, 64])
@pytest.mark.parametrize("rung", ["09", "14"])
@pytest.mark.parametrize("config", LLAMAS.values(), ids=LLAMAS)
def test_on_a_gpu_so_are_those_of_the_llama_family(
    config: LlamaConfig, rung: str, num_requests: int, dtype: torch.dtype
):
    """With hidden dimensions that are far larger than others, as those of trained models."""
    model = small_model(512, config=config)
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in model.network.layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.weight.uniform_(0.5, 1.5, generator=numbers)
        model.network.embed_tokens.weight[:, [5, 133]] *= 50
        for name, weight in model.network.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.div_(SPREAD)
    assert_no_further_than_transformers(model, LADDER[rung].options, num_requests, dtype)
