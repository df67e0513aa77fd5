"""labkit's Llama and Qwen3 against transformers', as transformers saves them, and what their config.json may
say."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig as TheirLlama
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen3ForCausalLM
from transformers import Qwen3Config as TheirQwen3

from labkit import LanguageModel, load_model
from labkit.errors import CheckpointError
from labkit.model.llama_config import LlamaConfig, LongContext, Qwen3Config
from labkit.model.prefill_attention import CausalAttention
from labkit.model.small import SMALL_LLAMA, SMALL_QWEN3, small_model

SIZES = {
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMAS: dict[str, dict[str, Any]] = {
    "a key for each query": {},
    "grouped heads, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "one key for all, biases": {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    "Llama 3's angles, wide heads": {
        **{"num_key_value_heads": 3, "head_dim": 20, "rope_parameters": LLAMA3, "rms_norm_eps": 1e-3}
    },
}
QWEN3S: dict[str, dict[str, Any]] = {
    "qwen3": {"num_key_value_heads": 3, "head_dim": 10, "rope_parameters": {"rope_theta": 1e6}},
    "qwen3, tied": {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True},
}


def randomized(hf: PreTrainedModel) -> PreTrainedModel:
    torch.manual_seed(0)
    for parameter in hf.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return hf.eval()


@pytest.fixture(scope="module", params=[*LLAMAS, *QWEN3S])
def hf(request) -> PreTrainedModel:
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": 3, "pad_token_id": None}
    if request.param in LLAMAS:
        made = LlamaForCausalLM(TheirLlama(**SIZES, **LLAMAS[request.param], **ends))
    else:
        made = Qwen3ForCausalLM(TheirQwen3(**SIZES, **QWEN3S[request.param], **ends))
    return randomized(made)


@pytest.fixture(scope="module")
def model(hf, tmp_path_factory, save_checkpoint) -> LanguageModel:
    """What transformers saved, in several files."""
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(hf, folder)
    hf.save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return load_model(folder)


@torch.inference_mode()
def all_logits(model: LanguageModel, input_ids: torch.Tensor) -> torch.Tensor:
    """Logits [B, T, V] after every token of [B, T], without the cache."""
    positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
    return model.network.lm_head(model.network(input_ids, positions, CausalAttention(input_ids < 0)))


def test_what_transformers_saves_gives_its_logits_at_every_position(hf, model):
    input_ids = torch.randint(97, (2, 64), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = hf(input_ids).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(all_logits(model, input_ids), expected, rtol=0, atol=1e-4)
    assert (model.config.model_type, model.config.eos_token_id) == (hf.config.model_type, 3)


def test_a_padded_row_that_continues_gives_the_logits_of_its_prompt_alone(model):
    prompts = [torch.arange(n) for n in (7, 1, 19)]
    lengths = torch.tensor([7, 1, 19])
    together = model.network.prefill(pad_sequence(prompts, batch_first=True), lengths)
    assert together.keys.shape[2] == model.config.num_kv_heads
    for b, prompt in enumerate(prompts):
        expected = all_logits(model, prompt[None])[0, -1]
        torch.testing.assert_close(together.last_logits[b], expected, rtol=0, atol=1e-4)


def test_a_copy_of_the_weights_in_transformers_gives_the_same_logits(hf, model):
    copied, input_ids = model.network.as_transformers(), torch.arange(40)[None]
    assert type(copied) is type(hf)
    with torch.inference_mode():
        torch.testing.assert_close(copied(input_ids).logits, hf(input_ids).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("config", [SMALL_LLAMA, SMALL_QWEN3], ids=["llama", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_in_16_bits_logits_are_as_near_to_float64_as_those_of_transformers(config, dtype):
    model = small_model(config=config)
    exact, half = (model.to("cpu", each) for each in (torch.float64, dtype))
    input_ids = torch.arange(64)[None]
    expected = all_logits(exact, input_ids)
    with torch.inference_mode():
        theirs = model.network.as_transformers().to(dtype)(input_ids).logits
    ours = all_logits(half, input_ids)
    error, other = ((logits.double() - expected).square().mean() for logits in (ours, theirs))
    assert error < 1.2 * other


# --- config.json -----------------------------------------------------------------------------------------


def test_angles_are_read_as_transformers_5_writes_them_and_as_older_ones_did():
    new = LlamaConfig.from_hf(SIZES | {"rope_parameters": LLAMA3})
    scaling = {("type" if name == "rope_type" else name): value for name, value in LLAMA3.items()}
    scaling.pop("rope_theta")
    old = LlamaConfig.from_hf(SIZES | {"rope_theta": 500.0, "rope_scaling": scaling})
    assert new == old
    assert (new.rope_theta, new.long_context) == (500.0, LongContext(8.0, 1.0, 4.0, 32))
    for plain in ({}, {"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}):
        assert LlamaConfig.from_hf(SIZES | plain) == replace(new, rope_theta=10000.0, long_context=None)


@pytest.mark.parametrize("both", [{"rope_theta": 900.0}, {}])
@pytest.mark.parametrize("scaling", [LLAMA3, {}])
def test_of_angles_that_are_given_twice_those_are_taken_that_transformers_takes(both, scaling):
    raw = SIZES | {"rope_parameters": both, "rope_scaling": scaling}
    theirs = SIZES | {"rope_parameters": TheirLlama.from_dict(raw).rope_parameters}
    assert LlamaConfig.from_hf(raw) == LlamaConfig.from_hf(theirs)


REFUSED = {
    "no size": ({"hidden_size": ...}, "config.json lacks hidden_size"),
    "half a head": ({"hidden_size": 47}, "hidden_size 47 is not a multiple of num_attention_heads 6"),
    "heads that do not divide": ({"num_key_value_heads": 4}, "num_key_value_heads must be a divisor of"),
    "an odd head": ({"head_dim": 7}, "head_dim must be an even number"),
    "no head": ({"head_dim": 0}, "head_dim must be a whole number from 1"),
    "too many positions": ({"max_position_embeddings": 2**21}, "max_position_embeddings must be a whole"),
    "theta": ({"rope_theta": "1e4"}, "rope_theta must be a number above 1"),
    "a bias that is no flag": ({"mlp_bias": 1}, "mlp_bias must be true or false"),
    "an end past the vocabulary": ({"eos_token_id": [7, 97]}, "eos_token_id must be one token id, 0 to 96"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu'; labkit runs 'silu' only"),
    "a part of a head is rotated": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "a window": ({"use_sliding_window": True}, "use_sliding_window = True; labkit runs False only"),
    "a layer with a window": ({"layer_types": ["sliding_attention"]}, "layer_types must be a list of 'full"),
    "other angles": ({"rope_scaling": {"type": "yarn"}}, "rope_type must be 'default' or 'llama3'"),
    "angles that are none": ({"rope_parameters": 3}, "rope_parameters must be an object or null, not 3"),
    "angles without a factor": ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling lacks factor, low"),
    "a factor of none": ({"rope_scaling": LLAMA3 | {"factor": 0.5}}, "factor must be a number, at least 1"),
    "waves": ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1}}, "high_freq_factor must be more than low_"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_a_config_that_cannot_be_is_refused_by_its_field(changes: dict, message: str):
    raw = {name: value for name, value in (SIZES | changes).items() if value is not ...}
    with pytest.raises(CheckpointError, match=message):
        LlamaConfig.from_hf(raw)


def test_a_qwen3_says_how_wide_its_heads_are():
    assert Qwen3Config.from_hf(SIZES | {"head_dim": 12}).head_dim == 12
    with pytest.raises(CheckpointError, match=r"config.json lacks head_dim"):
        Qwen3Config.from_hf(SIZES)
