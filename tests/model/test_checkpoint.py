"""What `load_model` takes. What it refuses is in tests/model/test_checkpoint_broken.py."""

import json
import pickle
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_checkpoint import save_small_checkpoint
from torch import Tensor
from transformers import GenerationConfig

from labkit import load_model
from labkit.errors import CheckpointError
from labkit.model import GPT2Config
from labkit.model.checkpoint import network_without_weights, random_network
from labkit.model.config import as_list
from labkit.model.llama_config import LlamaConfig
from labkit.model.random_configs import RANDOM_CONFIGS

# --- the hub ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("hub_id", ["no-one/no-model", "a--b", "gpt2.", "x" * 200])
def test_a_hub_id_that_the_hub_does_not_give_is_named_with_what_works_without_network(hub_id: str):
    """There is no network here; the last three names the hub does not allow."""
    with pytest.raises(CheckpointError, match=rf"{hub_id!r}.*network.*data/tiny-gpt2 or random:gpt2"):
        load_model(hub_id)


def test_a_hub_id_is_loaded_from_what_the_hub_gives_and_nothing_pickled_is_asked_for(sound, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda hub_id, **kw: asked.update(kw, hub_id=hub_id) or sound
    )
    model = load_model("some-one/some-model")
    assert (model.name, asked["hub_id"]) == ("some-one/some-model", "some-one/some-model")
    assert asked["allow_patterns"]
    assert not any(pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in asked["allow_patterns"])


def test_a_proxy_that_breaks_down_is_told_like_any_lack_of_network(monkeypatch):
    broken = Mock(side_effect=type("ProxyError", (Exception,), {}))  # of an HTTP library: no OSError
    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(CheckpointError, match=r"'some-one/some-model'.*\(ProxyError\)"):
        load_model("some-one/some-model")


# --- what loads ------------------------------------------------------------------------------------


def assert_same_weights(directory: Path, other: Path) -> None:
    a, b = (load_model(folder).network.state_dict() for folder in (directory, other))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


def as_the_hub_once_stored_it(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """No prefix, and each layer's causal mask among the weights."""
    old = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    mask = torch.ones(1, 1, 32, 32).tril()
    return old | {f"h.{i}.attn.{name}": mask.clone() for i in range(2) for name in ("bias", "masked_bias")}


@pytest.mark.parametrize(
    "change",
    [as_the_hub_once_stored_it, lambda t: t | {"lm_head.weight": t["transformer.wte.weight"].clone()}],
    ids=["the hub's old names and masks", "a tied head stored too"],
)
def test_another_way_to_store_the_same_weights_loads_the_same(directory: Path, sound: Path, change):
    file = directory / "model.safetensors"
    save_file(change(load_file(file)), file)
    assert_same_weights(directory, sound)


class Trap:
    """Unpickled, it leaves a file behind."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_nothing_is_ever_unpickled(directory: Path, sound: Path, tmp_path: Path):
    sprung = tmp_path / "sprung"
    poison = pickle.dumps(Trap(sprung))
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        (directory / name).write_bytes(poison)
    assert_same_weights(directory, sound)
    (directory / "model.safetensors").write_bytes(poison)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        load_model(directory)
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*; labkit reads no other format"):
        load_model(directory)
    assert not sprung.exists()
    pickle.loads(poison)
    assert sprung.exists()  # the trap works


def test_a_relative_path_is_found_from_anywhere_and_what_was_trained_is_not_called_random(
    tmp_path: Path, monkeypatch, tiny
):
    monkeypatch.chdir(tmp_path)
    model = load_model("data/tiny-gpt2")
    assert model.name == "data/tiny-gpt2" and not model.has_random_weights
    assert repr(model).startswith("LanguageModel(data/tiny-gpt2: ") and "random" not in repr(model)
    assert torch.equal(model.network.wte.weight, tiny.network.wte.weight)


def test_moving_copies_and_stays_tied_and_not_moving_copies_nothing(sound: Path):
    model = load_model(sound)
    assert model.to("cpu", torch.float32) is model
    assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())
    half = model.to("cpu", torch.float16)
    assert (half.dtype, model.dtype, half.name) == (torch.float16, torch.float32, model.name)
    assert half.network.lm_head.weight is half.network.wte.weight
    assert model.network.lm_head.weight is model.network.wte.weight


@pytest.mark.parametrize("kind", [GPT2Config, LlamaConfig])
@pytest.mark.parametrize("ends", [[7, 259, 9], [259, 50256], 7])
def test_tokens_at_which_transformers_ends_a_text_end_it(tmp_path: Path, kind, ends):
    """They may be in generation_config.json alone; here, those of config.json end a text as well. One that
    the vocabulary lacks ends nothing."""
    save_small_checkpoint(tmp_path, kind)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    theirs = GenerationConfig.from_pretrained(tmp_path).eos_token_id
    for own in (259, [], [259, 9]):
        config = json.loads((tmp_path / "config.json").read_text()) | {"eos_token_id": own}
        (tmp_path / "config.json").write_text(json.dumps(config))
        config = load_model(tmp_path).config
        found = [config.eos_token_id, *config.more_eos_token_ids]
        assert sorted(found) == sorted({*as_list(own), *as_list(theirs)} - {50256})
        assert load_model(tmp_path).eos_token_ids == set(found)
        assert as_list(config.to_hf()["eos_token_id"]) == found


# --- random weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_a_seed_gives_the_same_random_weights_and_another_seed_others(tied: bool):
    config = GPT2Config(970, 16, 120, 2, 3, tie_word_embeddings=tied)
    first, again, other = (random_network(config, seed).state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(first[key], again[key]) for key in first)
    drawn = [key for key in first if key.endswith("weight") and "ln_" not in key]
    assert len(drawn) == 11
    assert all(not torch.equal(first[key], other[key]) for key in drawn)
    assert all(abs(first[key].std().item() - 0.02) < 1e-3 for key in drawn)
    assert all(
        weight.eq(int(key.endswith("weight"))).all() for key, weight in first.items() if key not in drawn
    )
    assert torch.equal(first["lm_head.weight"], first["wte.weight"]) == tied


def test_a_random_model_says_that_it_is_random():
    model = load_model("random:small", dtype=torch.bfloat16)
    assert model.has_random_weights
    assert repr(model) == "LanguageModel(random:small: 0.0 M random parameters, torch.bfloat16, cpu)"


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        *(("gpt2", 124.4), ("gpt2-medium", 354.8), ("gpt2-large", 774.0), ("gpt2-xl", 1557.6)),
        *(("smollm2-135m", 134.5), ("qwen3-0.6b", 596.0), ("llama-3.2-1b", 1235.8), ("llama-3.1-8b", 8030.3)),
    ],
)
def test_a_random_model_has_the_size_of_the_one_it_is_named_for(name, millions, monkeypatch):
    """The published sizes, in which the head is the token table of all but the largest; none is drawn."""
    for draw in ("normal_", "uniform_"):
        monkeypatch.setattr(Tensor, draw, lambda *args, **kwargs: pytest.fail("a weight was initialized"))
    network = network_without_weights(RANDOM_CONFIGS[name])
    assert all(w.is_meta for w in network.parameters())
    assert round(sum(w.numel() for w in network.parameters()) / 1e6, 1) == millions
