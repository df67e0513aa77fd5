"""Checkpoints that somebody else broke: each is refused by name, before a module is built, and none hangs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from labkit import load_model
from labkit.errors import CheckpointError
from labkit.model import checkpoint

V, P, E, L = 300, 32, 16, 2  # vocabulary, positions, embedding, layers
C_FC = "transformer.h.1.mlp.c_fc.weight"  # [16, 64], stored the other way round than nn.Linear has it
WPE = "transformer.wpe.weight"
INF = float("inf")

Damage = Callable[[Path], object]


def weights(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


def refusal(source: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_model(source)
    return str(error.value)


# --- what the table of bad input, tests/bad_input/checkpoints.py, does not ask --------------------------


def edit_json(name: str, edit: Callable[[dict], dict]) -> Damage:
    def change(directory: Path) -> None:
        raw = json.loads((directory / name).read_text(encoding="utf-8"))
        (directory / name).write_text(json.dumps(edit(raw)), encoding="utf-8")

    return change


def config_with(**changes: object) -> Damage:
    return edit_json("config.json", lambda raw: raw | changes)


def edit_weights(edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Damage:
    return lambda directory: save_file(edit(weights(directory)), directory / "model.safetensors")


def without(*keys: str) -> Damage:
    return edit_weights(lambda tensors: {key: t for key, t in tensors.items() if key not in keys})


def with_tensor(key: str, *shape: int) -> Damage:
    return edit_weights(lambda tensors: tensors | {key: torch.zeros(shape)})


def remove(name: str) -> Damage:
    return lambda directory: (directory / name).unlink()


# Found before a module is built, and what the error must say.
DAMAGE: dict[str, tuple[Damage, list[str]]] = {
    "an architecture that is no text": (config_with(model_type=["gpt2"]), ["model_type = ['gpt2']", "gpt2"]),
    "a size missing": (
        edit_json("config.json", lambda raw: {"model_type": "gpt2", "n_layer": 2}),
        ["n_embd", "n_head"],
    ),
    "no epsilon": (config_with(layer_norm_epsilon=-INF), ["layer_norm_epsilon"]),
    "a million layers": (config_with(n_layer=10**6), ["has 1000000 layers; 28 tensors are stored"]),
    "numbers of 8 bits": (
        edit_weights(lambda tensors: tensors | {C_FC: tensors[C_FC].to(torch.float8_e5m2)}),
        [f"{C_FC} in model.safetensors has dtype torch.float8_e5m2; weights have torch.float16"],
    ),
    "no weights": (remove("model.safetensors"), ["no *.safetensors", "no weights at all"]),
    "no tokenizer": (remove("tokenizer.json"), ["no tokenizer", "tokenizer.json", "vocab.json"]),
    "a tokenizer larger than the model": (
        config_with(vocab_size=V - 1),
        [f"tokenizer has {V} entries", f"{V - 1}"],
    ),
    "an id of 32 bits": (
        edit_json("tokenizer.json", lambda raw: raw["model"]["vocab"].update(zz=2**31) or raw),
        [f"ids to {2**31}, and the model only {V}"],
    ),
    "merges longer than any token, where the backend panics": (
        edit_json("tokenizer.json", lambda raw: raw["model"].update(merges=[["t", "<|endoftext|>"]]) or raw),
        ["tokenizer", "cannot be used"],
    ),
}
# Found when there is a module, which has shapes alone, and before it is filled.
MISFITS: dict[str, tuple[Damage, list[str]]] = {
    "other positions": (
        config_with(n_positions=P + 1),
        [f"wpe.weight has shape [{P}, {E}], but config.json says it is [{P + 1}, {E}]"],
    ),
    "more bytes than can be counted": (config_with(n_embd=2**31 - 2), ["sizes of no network"]),
    "two tensors missing": (
        without(C_FC, "transformer.ln_f.bias"),
        ["missing tensors: h.1.mlp.c_fc.weight, ln_f.bias"],
    ),
    "a tied head that differs": (
        with_tensor("lm_head.weight", V, E),
        ["lm_head.weight", "wte.weight", "tie_word_embeddings"],
    ),
    "an untied head missing": (config_with(tie_word_embeddings=False), ["missing tensor: lm_head.weight"]),
    "a matrix transposed": (with_tensor(C_FC, 64, 16), ["h.1.mlp.c_fc.weight", "[64, 16]", "[16, 64]"]),
    "a tensor unknown": (with_tensor("score.weight", 2, 16), ["unknown tensor: score.weight"]),
    "a layer too few": (config_with(n_layer=L + 1), ["missing tensors: h.2.attn.c_attn.bias", "and 7 more"]),
    "a layer too many": (config_with(n_layer=1), ["unknown tensors", "h.1.attn.c_attn.bias"]),
}


@pytest.mark.parametrize("what", [*DAMAGE, *MISFITS])
def test_the_error_names_the_directory_and_the_culprit(monkeypatch, directory: Path, what: str):
    damage, culprits = (DAMAGE | MISFITS)[what]
    damage(directory)
    monkeypatch.setattr(checkpoint, "network_without_weights" if what in DAMAGE else "fill", None)
    said = refusal(directory)
    assert said.startswith(f"cannot load {directory}: ") and all(culprit in said for culprit in culprits)


# --- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_floating_point_load_in_any(directory: Path, dtype):
    save_file({key: t.to(dtype) for key, t in weights(directory).items()}, directory / "model.safetensors")
    stored = weights(directory)[WPE]
    assert torch.equal(load_model(directory).network.wpe.weight, stored.float())
    assert torch.equal(load_model(directory, dtype=dtype).network.wpe.weight, stored)


@pytest.mark.parametrize("length", [0, 7, 500, -1])
def test_weights_that_were_cut_off_are_damage(directory: Path, length):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert "model.safetensors is damaged" in refusal(directory)


TWICE = {
    "with and without prefix": lambda directory, tensor: save_file(
        weights(directory) | {"wpe.weight": tensor}, directory / "model.safetensors"
    ),
    "in two files": lambda directory, tensor: save_file({WPE: tensor}, directory / "other.safetensors"),
}


@pytest.mark.parametrize("store", TWICE.values(), ids=TWICE)
def test_a_tensor_that_is_stored_twice_is_refused(directory: Path, sound: Path, store):
    store(directory, weights(sound)[WPE])
    assert "wpe.weight" in (said := refusal(directory)) and "is stored a second time" in said


def test_the_tensors_of_a_file_share_its_memory(sound: Path):
    """Or a copy of the model would copy the whole file for each of them."""
    gpt2 = load_model(sound).network
    size = (sound / "model.safetensors").stat().st_size
    memory = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in gpt2.parameters()}
    assert sum(memory.values()) < 2 * size


# --- files that are none ---------------------------------------------------------------------------

FILES = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.mark.parametrize("folder", ["home", "models--a--b"])
@pytest.mark.parametrize("name", FILES)
def test_a_folder_called_snapshots_opens_nothing_above_it(directory: Path, tmp_path: Path, name, folder):
    """Of the hub's cache the blobs are the model's, and of any other folder nothing."""
    model = tmp_path / folder / "snapshots" / "mine"
    shutil.copytree(directory, model)
    for place in ("private", "blobs"):
        (model.parents[1] / place).mkdir()
        shutil.copy(model / name, model.parents[1] / place / name)
    for place in ("private", "blobs"):
        (model / name).unlink()
        (model / name).symlink_to(f"../../{place}/{name}")
        if (folder, place) == ("models--a--b", "blobs"):
            assert load_model(model).config.n_layer == L
        else:
            assert f"{name} is a link out of the model's folder" in refusal(model)


@pytest.mark.parametrize("name", FILES)
def test_a_link_inside_of_the_directory_is_followed(directory: Path, name):
    (directory / name).rename(directory / "kept")
    (directory / name).symlink_to("kept")
    assert load_model(directory).config.n_layer == L


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *((name, "relative") for name in (*FILES, "more.safetensors", "vocab.json", "merges.txt")),
        *((name, where) for name in FILES for where in ("absolute", "by another link")),
    ],
)
def test_a_link_out_of_the_directory_is_not_followed(monkeypatch, directory: Path, tmp_path, name, where):
    """Not even if a sound file is there: nothing outside is opened."""
    monkeypatch.setattr(checkpoint, "read_json", None)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / name).write_bytes((directory / name).read_bytes() if (directory / name).exists() else b"{}")
    (directory / name).unlink(missing_ok=True)
    if where == "by another link":
        (directory / "here").symlink_to(outside)
    place = {"absolute": outside, "relative": Path("../outside"), "by another link": Path("here")}[where]
    (directory / name).symlink_to(place / name)
    assert f"{name} is a link out of the model's folder, and is not followed" in refusal(directory)


@pytest.mark.parametrize("listed", ["../outside.safetensors", "/etc/passwd", "model.safetensors"])
def test_an_index_file_leads_nowhere(directory: Path, tmp_path, listed):
    """Its weight_map is not read: the files of the directory say themselves which tensors they hold."""
    save_file({WPE: torch.zeros(P, E)}, tmp_path / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {WPE: listed}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = load_model(directory).network.wpe.weight
    assert torch.equal(loaded, weights(directory)[WPE])
