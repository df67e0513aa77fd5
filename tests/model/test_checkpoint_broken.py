"""Checkpoints that somebody else broke: each is refused by name, before a module is built, and none hangs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from labkit import load_model
from labkit.errors import CheckpointError
from labkit.model import GPT2Config, checkpoint
from labkit.model.checkpoint import network_without_weights

V, P, E, L = 300, 32, 16, 2  # vocabulary, positions, embedding, layers
C_FC = "transformer.h.0.mlp.c_fc.weight"
WPE = "transformer.wpe.weight"
INF = float("inf")


def weights(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


def change_json(path: Path, change: Callable[[dict], dict]) -> None:
    raw = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(change(raw)), encoding="utf-8")


def refusal(source: object, **arguments: object) -> str:
    with pytest.raises(CheckpointError) as error:
        load_model(source, **arguments)
    return str(error.value)


# --- what the table of bad input, tests/bad_input/checkpoints.py, does not ask --------------------------


# Values that cannot be, and sizes that could but are not those of the weights: what the error must say.
REFUSED = {
    ("n_embd", "2"): "n_embd",
    ("layer_norm_epsilon", -INF): "layer_norm_epsilon",
    ("eos_token_id", V): "eos_token_id",
    ("vocab_size", V + 1): f"wte.weight has shape [{V}, {E}], but config.json says it is [{V + 1}, {E}]",
    ("n_positions", P - 1): f"wpe.weight has shape [{P}, {E}], but config.json says it is [{P - 1}, {E}]",
    ("n_layer", L + 1): f"config.json has n_layer = {L + 1}, but {L} layers are stored",
    ("n_inner", 1): f"h.0.mlp.c_fc.weight has shape [{E}, {4 * E}], but config.json says it is [{E}, 1]",
    ("n_inner", 2**31 - 1): "h.0.mlp.c_fc.weight has shape",
}


@pytest.mark.parametrize(("change", "message"), REFUSED.items(), ids=repr)
def test_a_config_is_refused_before_a_module_is_built(monkeypatch, directory: Path, change, message):
    monkeypatch.setattr(checkpoint, "network_without_weights", None)
    change_json(directory / "config.json", lambda raw: raw | {change[0]: change[1]})
    said = refusal(directory)
    assert said.startswith(f"cannot load {directory}: ") and message in said


# --- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "name"), [(torch.int32, "I32"), (torch.float8_e5m2, "F8_E5M2")])
def test_weights_that_are_no_floating_point_numbers_are_refused_by_name(monkeypatch, directory, dtype, name):
    stored = weights(directory)
    save_file(stored | {C_FC: stored[C_FC].to(dtype)}, directory / "model.safetensors")
    monkeypatch.setattr(checkpoint, "network_without_weights", None)
    said = f"{C_FC} has dtype {name} in model.safetensors; weights have F16, BF16, F32, F64"
    assert said in refusal(directory)


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
def test_a_tensor_that_is_stored_twice_must_have_the_same_numbers(directory: Path, sound: Path, store):
    store(directory, weights(sound)[WPE])
    assert torch.equal(load_model(directory).network.wpe.weight, load_model(sound).network.wpe.weight)
    for other in (torch.zeros(P, E), torch.zeros(P + 1, E)):
        store(directory, other)
        message = refusal(directory)
        assert "wpe.weight is stored twice, with other numbers: as " in message


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


# --- tokenizer -------------------------------------------------------------------------------------


def with_model(**changes: object):
    return lambda raw: {**raw, "model": {**raw["model"], **changes}}


def with_ids(**ids: int):
    return lambda raw: with_model(vocab={**raw["model"]["vocab"], **ids})(raw)


def changed(**changes: object):
    return lambda raw: {**raw, **changes}


BAD_TOKENIZERS = {
    "a type that is no text": (with_model(type=5), "is damaged"),
    "no model": (changed(model=None), "has no model"),
    "a Unigram whose unknown token is missing": (
        changed(model={"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}),
        "is damaged",
    ),
    "an id of 32 bits": (with_ids(zz=2**31), f"ids to {2**31}, and the model only {V}"),
    "no vocabulary": (with_model(vocab={}), "is damaged"),
    "merges longer than any token, where the backend panics": (
        with_model(merges=[["t", "<|endoftext|>"]]),
        "is damaged",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD_TOKENIZERS.values(), ids=BAD_TOKENIZERS)
def test_a_tokenizer_that_cannot_be_used_is_refused_by_what_is_wrong(directory: Path, change, message):
    change_json(directory / "tokenizer.json", change)
    said = refusal(directory)
    assert "tokenizer" in said and message in said


# --- what is built ---------------------------------------------------------------------------------


def test_shapes_alone_are_built_without_drawing_a_number(monkeypatch):
    def drawn(*args: object, **kwargs: object) -> None:
        raise AssertionError("a weight was initialized")

    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(Tensor, name, drawn)
    gpt2 = network_without_weights(GPT2Config(V, P, E, L, 2))
    assert {p.device.type for p in gpt2.parameters()} == {"meta"}
    with pytest.raises(AssertionError):
        nn.Linear(2, 2)
