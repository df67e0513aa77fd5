"""A second architecture, made here: the engine runs it as a `Network`, from a checkpoint in its own names."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from helpers import ByteTokenizer, make_engine, tokens_of
from safetensors.torch import save_file
from torch import Tensor, nn

from labkit import LADDER, LanguageModel, SamplingParams, load_model
from labkit.bench import decode_limit
from labkit.errors import CheckpointError, OptionError
from labkit.model import DecoderWeights, LinearWeights, Network, NormWeights
from labkit.model.checkpoint import random_network
from labkit.model.checkpoint_format import CheckpointFormat
from labkit.model.decoder_weights import LayerWeights
from labkit.model.registry import ARCHITECTURES, architecture_of
from labkit.paths import ROOT

PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5,)]
GREEDY = SamplingParams(10, stop_on_eos=False)
FUSED = [number for number, rung in LADDER.items() if rung.options.layer_kernels == "fused"]
SEPARATE = [number for number in LADDER if number not in FUSED]


@dataclass(frozen=True)
class PlainConfig:
    model_type: ClassVar[str] = "plain"
    vocab_size: int
    width: int
    depth: int
    num_heads: int = 2
    max_positions: int = 64
    tie_word_embeddings: bool = False
    eos_token_id: int | None = None

    @property
    def num_layers(self) -> int:
        return self.depth

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def hidden_size(self) -> int:
        return self.width

    @property
    def num_matrix_weights(self) -> int:
        return self.depth * 6 * self.width**2

    @property
    def kv_values_per_token(self) -> int:
        return 2 * self.depth * self.width


class PlainLayer(nn.Module):
    """A layer without biases: three matrices for query, key and value, and an MLP no wider than the rest."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o, self.up, self.down = (
            nn.Linear(width, width, bias=False) for _ in range(6)
        )

    def forward(self, x: Tensor, layer_idx: int, attend) -> Tensor:
        B, T, E = x.shape
        normed = self.norm1(x)
        heads = (m(normed).view(B, T, self.num_heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        x = x + self.o(attend(layer_idx, *heads).transpose(1, 2).reshape(B, T, E))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Plain(Network):
    checkpoint_format = CheckpointFormat(
        prefix="model.",
        layer=re.compile(r"layers\.(\d+)\."),
        num_layers_field="depth",
        token_table="tokens.weight",
        head="lm_head.weight",
        transposed=re.compile(r"layers\.\d+\.down\.weight"),
        not_weights=re.compile(r"cached_angles$"),
    )

    def __init__(self, config: PlainConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.places = nn.Embedding(config.max_positions, config.width)
        self.layers = nn.ModuleList(PlainLayer(config.width, config.num_heads) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)

    @classmethod
    def read_config(cls, raw: dict) -> PlainConfig:
        return PlainConfig(raw["vocab_size"], raw["width"], raw["depth"])

    @classmethod
    def stored_shapes(cls, config: PlainConfig) -> dict[str, tuple[int, ...]]:
        return {
            "tokens.weight": (config.vocab_size, config.width),
            "places.weight": (config.max_positions, config.width),
        }

    def lookup_tables(self) -> tuple[Tensor, ...]:
        return self.tokens.weight, self.places.weight

    def forward(self, input_ids: Tensor, positions: Tensor, attend) -> Tensor:
        x = self.tokens(input_ids) + self.places(positions)
        for layer_idx, layer in enumerate(self.layers):
            x = layer(x, layer_idx, attend)
        return self.norm(x)


class Fusable(Plain):
    """The same network, which also gives its weights to the fused kernels."""

    def decoder_weights(self) -> DecoderWeights:
        def norm(module: nn.LayerNorm) -> NormWeights:
            return NormWeights(module.weight, module.bias, module.eps)

        return DecoderWeights(
            self.tokens.weight,
            self.places.weight,
            tuple(
                LayerWeights(
                    norm(layer.norm1),
                    LinearWeights(torch.cat([layer.q.weight, layer.k.weight, layer.v.weight]), None),
                    LinearWeights(layer.o.weight, None),
                    norm(layer.norm2),
                    LinearWeights(layer.up.weight, None),
                    LinearWeights(layer.down.weight, None),
                )
                for layer in self.layers
            ),
            norm(self.norm),
            self.lm_head.weight,
        )


CONFIG = PlainConfig(vocab_size=200, width=16, depth=2)


@pytest.fixture(params=[Plain, Fusable], ids=["plain", "fusable"])
def network(request, monkeypatch) -> Network:
    """Random weights, large enough for every token to depend on all before it."""
    monkeypatch.setitem(ARCHITECTURES, "plain", request.param)
    made = random_network(CONFIG, seed=0)
    assert type(made) is request.param
    for parameter in made.parameters():
        parameter.mul_(20 if parameter.dim() == 2 else 1)
    return made


def tokens_without_cache(network: Network, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The likeliest tokens, one by one, each by a prefill of all before it."""
    token_ids = list(prompt)
    for _ in range(count):
        logits = network.prefill(torch.tensor([token_ids]), torch.tensor([len(token_ids)])).last_logits
        token_ids.append(int(logits.argmax()))
    return tuple(token_ids[len(prompt) :])


@pytest.fixture
def expected(network: Network) -> list[tuple[int, ...]]:
    tokens = [tokens_without_cache(network, prompt, 10) for prompt in PROMPTS]
    assert len({token for each in tokens for token in each}) > 5  # no model that says one thing
    return tokens


@pytest.mark.parametrize("number", SEPARATE)
def test_its_tokens_are_those_of_no_cache_on_every_rung_of_separate_layers(network, expected, number):
    engine = make_engine(LanguageModel("plain", network, ByteTokenizer()), LADDER[number].options)
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == expected


@pytest.mark.parametrize("number", FUSED)
def test_with_its_weights_by_what_they_do_it_runs_on_fused_kernels(network, expected, number):
    model = LanguageModel("plain", network, ByteTokenizer())
    if type(network) is Plain:
        with pytest.raises(OptionError, match=r"'fused' .* does not fit Plain.*layer_kernels = 'separate'"):
            make_engine(model, LADDER[number].options)
        return
    engine = make_engine(model, LADDER[number].options)
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == expected


def test_a_decode_step_reads_all_its_weights_but_the_lookup_tables(network):
    E, matrices, norms = 16, 2 * 6 * 16**2, (2 * 2 + 1) * 2 * 16
    limit = decode_limit(network, [7], bandwidth=1.0)
    assert limit.weight_bytes == 4 * (matrices + norms + 200 * E)
    assert limit.kv_bytes == 4 * 2 * 2 * E * (7 + 1)


# --- its checkpoint --------------------------------------------------------------------------------------


@pytest.fixture
def directory(network: Network, tmp_path: Path) -> Path:
    config = {"model_type": "plain", "vocab_size": 200, "width": 16, "depth": 2}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    raw = json.loads((ROOT / "data/tiny-gpt2/tokenizer.json").read_text(encoding="utf-8"))
    vocab = {token: i for token, i in raw["model"]["vocab"].items() if i < 200}
    raw["model"] |= {"vocab": vocab, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    stored = {
        f"model.{key}": (weight.T if key.endswith("down.weight") else weight).contiguous()
        for key, weight in network.state_dict().items()
    }
    save_file({**stored, "model.cached_angles": torch.arange(3)}, tmp_path / "model.safetensors")
    return tmp_path


def test_its_checkpoint_is_read_by_its_own_names(network, directory):
    model = load_model(directory)
    assert type(model.network) is type(network) and model.config == CONFIG
    for (name, loaded), (_, weight) in zip(
        model.network.state_dict().items(), network.state_dict().items(), strict=True
    ):
        assert torch.equal(loaded, weight), name


def test_too_few_layers_are_named_by_its_own_field(directory):
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps({**config, "depth": 3}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config.json has depth = 3, but 2 layers are stored"):
        load_model(directory)


def test_an_architecture_that_is_not_registered_is_refused_with_those_that_are(directory, monkeypatch):
    with pytest.raises(CheckpointError, match=r"model_type = 'bert'; labkit runs 'gpt2', .*'plain' only"):
        architecture_of("bert")
    monkeypatch.delitem(ARCHITECTURES, "plain")
    with pytest.raises(CheckpointError, match=r"model_type = 'plain'; labkit runs 'gpt2', .* only"):
        load_model(directory)


def test_what_it_cannot_do_for_a_comparison_it_says(network):
    with pytest.raises(OptionError, match=f"{type(network).__name__} cannot be made a model of transformers"):
        network.as_transformers()
