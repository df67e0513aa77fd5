"""Checkpoints that somebody else broke: each is refused by name, before a module is built, and none hangs."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from labkit import load_model
from labkit.checks import shown
from labkit.errors import CheckpointError
from labkit.model import GPT2Config, checkpoint
from labkit.model.checkpoint import network_without_weights
from labkit.paths import ROOT

V, P, E, L = 300, 32, 16, 2  # vocabulary, positions, embedding, layers
CONFIG = {
    "model_type": "gpt2",
    "vocab_size": V,
    "n_positions": P,
    "n_embd": E,
    "n_layer": L,
    "n_head": 2,
    "eos_token_id": 0,
}
C_FC = "transformer.h.0.mlp.c_fc.weight"
HUGE, NAN, INF = 10**30, float("nan"), float("inf")


def tokenizer_json() -> dict:
    """The shipped tokenizer, cut to V tokens."""
    raw = json.loads((ROOT / "data/tiny-gpt2/tokenizer.json").read_text(encoding="utf-8"))
    vocab = {token: i for token, i in raw["model"]["vocab"].items() if i < V}
    merges = [pair for pair in raw["model"]["merges"] if {*pair, "".join(pair)} <= vocab.keys()]
    return {**raw, "model": {**raw["model"], "vocab": vocab, "merges": merges}}


def weights() -> dict[str, Tensor]:
    """As transformers stores them: a prefix, and matrices of layers the other way round than nn.Linear's."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        f"transformer.{key}": tensor.shape[::-1] if ".attn.c_" in key or ".mlp.c_" in key else tensor.shape
        for key, tensor in network_without_weights(GPT2Config.from_hf(CONFIG)).state_dict().items()
        if key != "lm_head.weight"
    }
    return {key: torch.randn(*shape, generator=generator) for key, shape in shapes.items()}


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("sound")
    (directory / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()), encoding="utf-8")
    save_file(weights(), directory / "model.safetensors")
    return directory


@pytest.fixture
def directory(sound: Path, tmp_path: Path) -> Path:
    """A copy for one test to break."""
    return shutil.copytree(sound, tmp_path / "broken")


def refusal(source: object, **arguments: object) -> str:
    with pytest.raises(CheckpointError) as error:
        load_model(source, **arguments)
    return str(error.value)


def test_what_is_broken_below_is_sound_before(sound: Path):
    model = load_model(sound)
    assert model.config == GPT2Config(V, P, E, L, 2, eos_token_id=0)
    stored = load_file(sound / "model.safetensors")
    assert torch.equal(model.network.h[0].mlp.c_fc.weight, stored[C_FC].T)
    assert torch.equal(model.network.wpe.weight, stored["transformer.wpe.weight"])


# --- arguments -------------------------------------------------------------------------------------

SOURCES = [
    *(
        None,
        5,
        1.5,
        True,
        b"data",
        [],
        ["data/tiny-gpt2"],
        {},
        ("a",),
        torch.zeros(2),
        np.array("a"),
        object(),
    ),
    *("", "a" * 5000, "/" + "a" * 5000, "a/" * 3000),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: repr(s).split(" at 0x")[0][:30])
def test_a_source_that_can_be_none_is_refused_by_name(source):
    message = refusal(source)
    assert message.startswith("source ") and len(message) < 200


@pytest.mark.parametrize(
    "source", ["~no-such-user", "~no-such-user/x", "/" + "a" * 300, "a\0b", "a\nb", "/dev/null"]
)
def test_a_directory_that_is_not_there_is_said_not_to_be(source):
    assert refusal(source) == f"there is no directory {source}"


DTYPES = [
    *(
        "float16",
        "float32",
        "torch.float32",
        "",
        None,
        16,
        0,
        True,
        float,
        int,
        np.float32,
        [torch.float32],
        {},
    ),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(
        torch.complex32,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.quint8,
    ),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
@pytest.mark.parametrize("source", ["a directory", "random:gpt2"])
def test_a_dtype_that_no_weights_come_in_is_refused_before_anything_is_drawn(
    monkeypatch, sound, source, dtype
):
    monkeypatch.setattr(checkpoint, "network_without_weights", None)
    message = refusal(sound if source == "a directory" else source, dtype=dtype)
    assert message.startswith(
        "dtype must be one of torch.float16, torch.bfloat16, torch.float32, torch.float64"
    )


SEEDS = ["x", "0", "", None, 1.5, 0.0, float("nan"), True, [0], {}, b"1", torch.zeros(2), np.float64(1)]
SEEDS += [2**64, 2**70, -(2**63) - 1, 10**30, 10**5000]


@pytest.mark.parametrize("seed", SEEDS, ids=shown)
@pytest.mark.parametrize("source", ["a directory", "random:gpt2"])
def test_a_seed_that_is_no_whole_number_of_64_bits_is_refused(monkeypatch, sound, source, seed):
    monkeypatch.setattr(checkpoint, "network_without_weights", None)
    message = refusal(sound if source == "a directory" else source, seed=seed)
    assert message.startswith("seed must be a whole number of at most 64 bits, not ") and len(message) < 150


@pytest.mark.parametrize(
    "seed", [0, -1, 2**63, 2**64 - 1, -(2**63), np.int64(3), np.uint8(200), torch.tensor(5)]
)
def test_every_seed_that_torch_takes_is_taken(sound: Path, seed):
    assert load_model(sound, seed=seed).config.n_layer == L
    torch.Generator().manual_seed(int(seed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_that_is_named_is_loaded(sound: Path, dtype):
    model = load_model(sound, dtype=dtype)
    assert {tensor.dtype for tensor in model.network.state_dict().values()} == {dtype}


# --- config.json -----------------------------------------------------------------------------------

SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner")
NO_SIZES = [True, False, 0, -1, 1.0, 2.5, "2", "", [], [2], {}, HUGE, 2**31, NAN, INF]
BAD_VALUES = [
    *((name, value) for name in SIZES for value in NO_SIZES),
    *((name, None) for name in SIZES if name != "n_inner"),
    *(
        ("layer_norm_epsilon", value)
        for value in [
            "1e-5",
            None,
            [],
            {},
            True,
            False,
            0,
            0.0,
            -1,
            -1e-5,
            1,
            1e9,
            10**19,
            HUGE,
            NAN,
            INF,
            -INF,
        ]
    ),
    *(("tie_word_embeddings", value) for value in ["false", "no", "", None, 0, 1, 0.0, [], {}]),
    *(("eos_token_id", value) for value in [-1, V, 99999, 10**19, True, False, 0.0, "0", [0], [0, 1], {}]),
    *(("reorder_and_upcast_attn", value) for value in ["x", "false", None, 0, 1, []]),
    *(("scale_attn_weights", value) for value in [False, 1, 1.0, "true", None, []]),
    *(("scale_attn_by_inverse_layer_idx", value) for value in [True, 0, 1, "false", None, {}]),
    *(("add_cross_attention", value) for value in [True, 0, "false", None]),
    *(("activation_function", value) for value in ["relu", "gelu", "", None, 5, ["gelu_new"], {}]),
    *(("model_type", value) for value in ["llama", "GPT2", "", None, 2, ["gpt2"], {}]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), BAD_VALUES, ids=lambda x: repr(x)[:24])
def test_a_value_of_config_json_that_cannot_be_is_refused_by_name(monkeypatch, directory: Path, name, value):
    monkeypatch.setattr(checkpoint, "network_without_weights", None)  # nothing is built
    (directory / "config.json").write_text(json.dumps({**CONFIG, name: value}))
    message = refusal(directory)
    assert message.startswith(f"cannot load {directory}: ") and name in message


# Sizes that could be, but not those of the weights: what the error must name.
OTHER_SIZES = {
    ("vocab_size", V + 1): f"wte.weight has shape [{V}, {E}], but config.json says it is [{V + 1}, {E}]",
    ("vocab_size", 2**31 - 1): "wte.weight has shape",
    ("n_positions", P - 1): f"wpe.weight has shape [{P}, {E}], but config.json says it is [{P - 1}, {E}]",
    ("n_positions", 10**9): "wpe.weight has shape",
    ("n_embd", 2 * E): "wte.weight has shape",
    ("n_embd", 2 * 10**9): "wte.weight has shape",
    ("n_layer", L + 1): f"config.json has n_layer = {L + 1}, but {L} layers are stored",
    ("n_layer", 10**6): "config.json has n_layer = 1000000, but 2 layers are stored",
    ("n_layer", 2**31 - 1): "config.json has n_layer",
    ("n_inner", 1): f"h.0.mlp.c_fc.weight has shape [{E}, {4 * E}], but config.json says it is [{E}, 1]",
    ("n_inner", 2**31 - 1): "h.0.mlp.c_fc.weight has shape",
    ("n_head", 3): "n_embd 16 is not a multiple of n_head 3",
    ("n_head", 2**31 - 1): "n_embd 16 is not a multiple of n_head",
}


@pytest.mark.parametrize(("change", "message"), OTHER_SIZES.items(), ids=repr)
def test_a_size_that_the_weights_do_not_have_is_refused_before_a_module_is_built(
    monkeypatch, directory: Path, change, message
):
    monkeypatch.setattr(checkpoint, "network_without_weights", None)
    (directory / "config.json").write_text(json.dumps({**CONFIG, change[0]: change[1]}))
    assert message in refusal(directory)


DEEP = 100_000
BAD_CONFIGS = {
    "empty": (b"", "not valid JSON"),
    "a number": (b"5", "config.json holds a int, not an object"),
    "null": (b"null", "config.json holds a NoneType, not an object"),
    "a list": (b"[]", "config.json holds a list, not an object"),
    "cut": (json.dumps(CONFIG).encode()[:-9], "not valid JSON"),
    "with a tail": (json.dumps(CONFIG).encode() + b"}", "not valid JSON"),
    "not UTF-8": (b'{"model_type": "\xff"}', "not valid JSON: 'utf-8'"),
    "UTF-16": (json.dumps(CONFIG).encode("utf-16"), "not valid JSON"),
    "with a byte order mark": (
        b"\xef\xbb\xbf" + json.dumps(CONFIG).encode(),
        "not valid JSON: Unexpected UTF-8 BOM",
    ),
    "a NUL": (b"\0", "not valid JSON"),
    "nested lists": (b"[" * DEEP + b"]" * DEEP, "nested too deep"),
    "nested objects": (b'{"a":' * DEEP + b"1" + b"}" * DEEP, "nested too deep"),
    "nested in a key": (b'{"model_type": "gpt2", "n_layer": ' + b"[" * DEEP, "nested too deep"),
    "a number of 5000 digits": (b'{"n_layer": ' + b"9" * 5000 + b"}", "not valid JSON"),
    "a key twice": (b'{"n_layer": 2, "n_layer": 12}', "not valid JSON: 'n_layer' is given twice"),
    "an empty object": (b"{}", "model_type = None"),
}


@pytest.mark.parametrize(("content", "message"), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_config_json_that_is_no_json_object_is_refused(directory: Path, content, message):
    (directory / "config.json").write_bytes(content)
    said = refusal(directory)
    assert "config.json" in said and message in said and len(said) < 500


@pytest.mark.parametrize("changes", [{"eos_token_id": None}, {"eos_token_id": V - 1}, {"n_inner": 4 * E}])
@pytest.mark.parametrize("more", [{}, {"reorder_and_upcast_attn": True}, {"layer_norm_epsilon": 1e-12}])
def test_a_config_json_with_other_values_that_can_be_loads(directory: Path, changes, more):
    (directory / "config.json").write_text(json.dumps({**CONFIG, **changes, **more}))
    config = load_model(directory).config
    assert all(getattr(config, name) == value for name, value in changes.items())


# --- weights ---------------------------------------------------------------------------------------

BAD_DTYPES = {
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}


@pytest.mark.parametrize(("dtype", "name"), BAD_DTYPES.items(), ids=repr)
@pytest.mark.parametrize("which", ["all", C_FC])
def test_weights_that_are_no_floating_point_numbers_are_refused_by_name(
    monkeypatch, directory, dtype, name, which
):
    stored = {key: t.to(dtype) if which in ("all", key) else t for key, t in weights().items()}
    save_file(stored, directory / "model.safetensors")
    monkeypatch.setattr(checkpoint, "network_without_weights", None)
    message = refusal(directory)
    assert f"has dtype {name} in model.safetensors; weights have F16, BF16, F32, F64" in message
    assert which == "all" or f"{C_FC} has dtype" in message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_floating_point_load(directory: Path, dtype):
    save_file({key: t.to(dtype) for key, t in weights().items()}, directory / "model.safetensors")
    assert torch.equal(
        load_model(directory).network.wpe.weight, weights()["transformer.wpe.weight"].to(dtype).float()
    )


def test_masks_that_old_checkpoints_stored_are_left_alone_whatever_they_are(directory: Path):
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8) for i in range(L)}
    save_file(weights() | masks, directory / "model.safetensors")
    assert load_model(directory).config.n_layer == L


def rewrite_header(file: Path, edit) -> None:
    """Change the text of a safetensors file's header, and its length, and leave the tensors."""
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = edit(raw[8 : 8 + size].decode().strip()).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + size :])


WPE = '"transformer.wpe.weight":{'
BAD_HEADERS = {
    "a key twice": lambda h: h.replace(WPE, h[h.index(WPE) :].partition("}")[0] + "}," + WPE),
    "another dtype": lambda h: h.replace('"F32"', '"I32"', 1),
    "a dtype unknown": lambda h: h.replace('"F32"', '"X99"', 1),
    "offsets that overlap": lambda h: h.replace('"data_offsets":[0,', '"data_offsets":[4,', 1),
    "a negative size": lambda h: h.replace(f"[{P},{E}]", f"[-{P},-{E}]"),
    "a size past 64 bits": lambda h: h.replace(f"[{P},{E}]", f"[{HUGE},{E}]"),
    "no JSON": lambda h: h[:-1],
    "a list": lambda h: "[]",
    "nothing": lambda h: "",
    "nested": lambda h: "[" * DEEP,
}


@pytest.mark.parametrize("edit", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_header_that_cannot_be_is_refused_with_its_file(directory: Path, edit):
    rewrite_header(directory / "model.safetensors", edit)
    assert "model.safetensors" in refusal(directory)


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**40, 2**63, 2**64 - 1])
def test_a_header_of_another_length_than_it_says_is_damage(directory: Path, size):
    file = directory / "model.safetensors"
    file.write_bytes(size.to_bytes(8, "little") + file.read_bytes()[8:])
    assert "model.safetensors is damaged" in refusal(directory)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 500, -1])
def test_weights_that_were_cut_off_are_damage(directory: Path, length):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert "model.safetensors is damaged" in refusal(directory)


TWICE = {
    "with and without prefix": lambda directory, tensor: save_file(
        weights() | {"wpe.weight": tensor}, directory / "model.safetensors"
    ),
    "in two files": lambda directory, tensor: save_file(
        {"transformer.wpe.weight": tensor}, directory / "other.safetensors"
    ),
    "in two files, without prefix": lambda directory, tensor: save_file(
        {"wpe.weight": tensor}, directory / "more.safetensors"
    ),
}


@pytest.mark.parametrize("store", TWICE.values(), ids=TWICE)
@pytest.mark.parametrize(
    "tensor", [torch.zeros(P, E), torch.zeros(P + 1, E), torch.zeros(P * E)], ids=lambda t: t.shape
)
def test_a_tensor_that_is_stored_twice_with_other_numbers_is_refused(directory: Path, store, tensor):
    store(directory, tensor)
    message = refusal(directory)
    assert "wpe.weight is stored twice, with other numbers: as " in message and "model.safetensors" in message


@pytest.mark.parametrize("store", TWICE.values(), ids=TWICE)
def test_a_tensor_that_is_stored_twice_with_the_same_numbers_loads(directory: Path, sound: Path, store):
    store(directory, weights()["transformer.wpe.weight"])
    assert torch.equal(load_model(directory).network.wpe.weight, load_model(sound).network.wpe.weight)


def test_the_same_numbers_in_another_dtype_are_the_same(directory: Path, sound: Path):
    stored = {key: t.half() for key, t in weights().items()}
    again = {name: stored[f"transformer.{name}"].double() for name in ("wte.weight", "wpe.weight")}
    save_file(
        stored | again | {"lm_head.weight": again["wte.weight"].clone()}, directory / "model.safetensors"
    )
    loaded = load_model(directory).network
    assert torch.equal(loaded.lm_head.weight, stored["transformer.wte.weight"].float())


@pytest.mark.parametrize(
    "head", [torch.zeros(V, E), torch.zeros(V - 1, E), torch.zeros(E, V)], ids=lambda t: t.shape
)
def test_a_tied_head_that_differs_is_refused(directory: Path, head):
    save_file(weights() | {"lm_head.weight": head}, directory / "model.safetensors")
    assert "lm_head.weight is not wte.weight" in refusal(directory)


@pytest.mark.parametrize(
    "key", ["wte.weight", "wpe.weight", "h.0.mlp.c_fc.weight", "h.1.ln_1.bias", "ln_f.weight"]
)
def test_a_tensor_that_is_missing_is_named(directory: Path, key):
    stored = {name: t for name, t in weights().items() if name != f"transformer.{key}"}
    save_file(stored, directory / "model.safetensors")
    assert f"missing tensor: {key}" in refusal(directory)


def test_the_tensors_of_a_file_share_its_memory(sound: Path):
    """Or a copy of the model would copy the whole file for each of them."""
    gpt2 = load_model(sound).network
    size = (sound / "model.safetensors").stat().st_size
    memory = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in gpt2.parameters()}
    assert sum(memory.values()) < 2 * size


# --- files that are none ---------------------------------------------------------------------------

FILES = ("config.json", "model.safetensors", "tokenizer.json")
NO_FILES = {
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a directory": lambda path: path.symlink_to(path.parent),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes with a name")
@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_regular_file_is_not_opened(directory: Path, name, make):
    (directory / name).unlink()
    make(directory / name)
    message = refusal(directory)
    assert name in message and ("is no regular file" in message or "is a link to nothing" in message)


@pytest.mark.parametrize("name", FILES)
def test_a_link_to_a_file_is_followed_as_the_hubs_cache_has_it(directory: Path, tmp_path: Path, name):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    shutil.copytree(directory, snapshot)
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    (snapshot / name).rename(blobs / "blob")
    (snapshot / name).symlink_to("../../blobs/blob")
    assert load_model(snapshot).config.n_layer == L


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


@pytest.mark.parametrize("name", [*FILES, "more.safetensors", "vocab.json", "merges.txt"])
@pytest.mark.parametrize("where", ["absolute", "relative", "by another link"])
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


def test_a_directory_that_is_a_link_itself_is_where_it_leads(directory: Path, tmp_path):
    (tmp_path / "link").symlink_to(directory)
    assert load_model(tmp_path / "link").config.n_layer == L


@pytest.mark.parametrize("listed", ["../outside.safetensors", "/etc/passwd", "model.safetensors"])
def test_an_index_file_leads_nowhere(directory: Path, tmp_path, listed):
    """Its weight_map is not read: the files of the directory say themselves which tensors they hold."""
    save_file({"transformer.wpe.weight": torch.zeros(P, E)}, tmp_path / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"transformer.wpe.weight": listed}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = load_model(directory).network.wpe.weight
    assert torch.equal(loaded, weights()["transformer.wpe.weight"])


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_without_end_is_not_read_into_memory(directory: Path, name):
    with open(directory / name, "r+b") as file:
        file.truncate(3 << 30)  # it takes no room on the disk
    assert f"{name} is larger than 256 MiB" in refusal(directory)


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_of_the_older_tokenizer_files_neither(directory: Path, name, make):
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.json").write_text("{}")
    (directory / "merges.txt").write_text("")
    (directory / name).unlink()
    make(directory / name)
    assert name in refusal(directory)


# --- tokenizer -------------------------------------------------------------------------------------


def with_model(**changes: object):
    return lambda raw: {**raw, "model": {**raw["model"], **changes}}


def with_ids(**ids: int):
    return lambda raw: with_model(vocab={**raw["model"]["vocab"], **ids})(raw)


def changed(**changes: object):
    return lambda raw: {**raw, **changes}


UNIGRAM = {"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}
SOME_TOKEN = "!"
BAD_TOKENIZERS = {
    "a type that is no text": (with_model(type=5), "is damaged"),
    "a Unigram whose unknown token is missing": (changed(model=UNIGRAM), "is damaged"),
    "no model": (changed(model=None), "has no model"),
    "a model that is text": (changed(model="BPE"), "has no model"),
    "a list": (lambda raw: [raw], "has no model"),
    "null": (lambda raw: None, "has no model"),
    "dropout": (with_model(dropout=0.5), "dropout = 0.5"),
    "dropout of all": (with_model(dropout=1.0), "dropout = 1.0"),
    "an id out of range": (with_ids(zz=V), f"ids to {V}, and the model only {V}"),
    "an id of 32 bits": (with_ids(zz=2**31), f"ids to {2**31}, and the model only {V}"),
    "an id past 32 bits": (with_ids(zz=2**32), f"the id of 'zz' is {2**32}"),
    "a negative id": (with_ids(zz=-1), "the id of 'zz' is -1"),
    "an id that is no whole number": (with_ids(zz=1.5), "the id of 'zz' is 1.5"),
    "two tokens with one id": (with_ids(zz=5), "two tokens with the id 5"),
    "an id that is true": (with_ids(zz=True), "the id of 'zz' is True"),
    "vocabulary null": (with_model(vocab=None), "its vocabulary is None"),
    "no vocabulary": (with_model(vocab={}), "is damaged"),
    "a vocabulary that is a list": (with_model(vocab=[]), "its vocabulary is []"),
    "merges of three": (with_model(merges=[["a", "b", "c"]]), "is damaged"),
    "merges of what is not there": (with_model(merges=[["zz", "qq"]]), "is damaged"),
    "merges longer than any token, where the backend panics": (
        with_model(merges=[["t", "<|endoftext|>"]]),
        "is damaged",
    ),
    "merges that are numbers": (with_model(merges=[1]), "is damaged"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("change", "message"), BAD_TOKENIZERS.values(), ids=BAD_TOKENIZERS)
def test_a_tokenizer_that_cannot_be_used_is_refused_by_what_is_wrong(
    monkeypatch, directory: Path, change, message
):
    monkeypatch.setattr(checkpoint, "network_without_weights", None)
    (directory / "tokenizer.json").write_text(json.dumps(change(tokenizer_json())), encoding="utf-8")
    said = refusal(directory)
    assert "tokenizer" in said and message in said


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * DEEP, b'{"model": {}, "model": {}}'])
def test_a_tokenizer_json_that_is_no_json_is_refused(directory: Path, content):
    (directory / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json is n" in refusal(directory)


@pytest.mark.parametrize(
    "ids", [{"a": 0, "b": 0}, {"a": V}, {"a": 2**32}, {"a": -1}, {"a": "0"}, []], ids=repr
)
def test_a_vocab_json_is_held_to_the_same(directory: Path, ids):
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.json").write_text(json.dumps(ids))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    assert "tokenizer" in refusal(directory)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: {**raw, "model": {k: v for k, v in raw["model"].items() if k != "type"}},
        with_model(continuing_subword_prefix="", end_of_word_suffix="", dropout=None),
        with_model(dropout=0.0),
        with_model(merges=[]),
        lambda raw: {**raw, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [raw["pre_tokenizer"]]}},
    ],
    ids=["as GPT-2's own file, without a type", "with empty affixes", "dropout 0", "no merges", "a sequence"],
)
def test_a_tokenizer_that_says_the_same_in_other_words_loads(directory: Path, change):
    (directory / "tokenizer.json").write_text(json.dumps(change(tokenizer_json())), encoding="utf-8")
    tokenizer = load_model(directory).tokenizer
    assert tokenizer.decode(tokenizer.encode("To be, ✓")) == "To be, ✓"


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
