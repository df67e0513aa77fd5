"""Checkpoints: what is asked for, and the files of a directory, each broken in its own way."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bad_input import BadInput, World, values_of
from bad_values import JUNK, NO_FILES, without
from safetensors.torch import load_file, save_file

from labkit import load_model
from labkit.errors import CheckpointError
from labkit.model.small import save_small_checkpoint

HUGE, NAN, INF, DEEP = 10**30, float("nan"), float("inf"), 100_000
SOURCES = without(JUNK, "text", "megabytes of text") | {
    "None": None,
    "True": True,
    "no text": "",
    "5,000 letters": "a" * 5000,
    "many folders": "a/" * 3000,
    "a list of names": ["data/tiny-gpt2"],
}
NOWHERE = [
    "~no-such-user",
    "~no-such-user/x",
    "/" + "a" * 300,
    "a\0b",
    "/dev/null",
    "/etc/hostname",
    "..a//b",
]
NAMES = ["random:", "random:gpt3", "random:GPT2", "random:../x", "random: gpt2", "random:\ud800"]
DTYPES = JUNK | {
    "None": None,
    **{repr(name): name for name in ("float16", "float32", "torch.float32", "", float, np.float32)},
    **{str(kind): kind for kind in (torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2)},
}
SEEDS = without(JUNK, "a number", "a 0-d array") | {
    "None": None,
    "True": True,
    "2**64": 2**64,
    "-(2**63) - 1": -(2**63) - 1,
}

# --- files -----------------------------------------------------------------------------------------------

Damage = Callable[[Path], object]


def config(**changes: object) -> Damage:
    """config.json with other values."""

    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def raw(name: str, content: bytes) -> Damage:
    """A file with this content."""
    return lambda folder: (folder / name).write_bytes(content)


def special(name: str, make: Callable[[Path], object]) -> Damage:
    """Something else in a file's place."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


def header(edit: Callable[[dict], object]) -> Damage:
    """The header of the weights, changed."""

    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        tensors = json.loads(content[8 : 8 + size])
        edit(tensors)
        written = json.dumps(tensors).encode()
        path.write_bytes(len(written).to_bytes(8, "little") + written + content[8 + size :])

    return damage


def weights(edit: Callable[[dict], object]) -> Damage:
    """The tensors of the weights, changed."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")

    return damage


def tokenizer(edit: Callable[[dict], object]) -> Damage:
    """tokenizer.json, changed."""

    def damage(folder: Path) -> None:
        path = folder / "tokenizer.json"
        parts = json.loads(path.read_text())
        edit(parts)
        path.write_text(json.dumps(parts))

    return damage


SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner")
VALUES = {
    **{name: [True, 0, -1, 2.5, "2", [2], {}, HUGE, 2**31, NAN, INF] for name in SIZES},
    "layer_norm_epsilon": ["1e-5", None, [], True, 0, -1e-5, 1, 1e9, 10**19, NAN, INF],
    "tie_word_embeddings": ["false", None, 0, 1, []],
    "eos_token_id": [-1, 99999, True, 0.0, "0", [0, 1]],
    "activation_function": ["relu", "", None, ["gelu_new"]],
    "model_type": ["bert", "GPT2", "", None, ["gpt2"]],
    "scale_attn_weights": [False, 1, None],
    "add_cross_attention": [True, 0],
    "reorder_and_upcast_attn": ["x", None],
}
CONTENTS = {
    "empty": b"",
    "a list": b"[]",
    "null": b"null",
    "cut": b'{"model_type": "gp',
    "no UTF-8": b'{"a": "\xff"}',
    "UTF-16": "{}".encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "nested": b"[" * DEEP,
    "a key twice": b'{"n_layer": 2, "n_layer": 3}',
    "a number of 5,000 digits": b'{"n_layer": ' + b"9" * 5000 + b"}",
    "an empty object": b"{}",
}
FILES = ("config.json", "model.safetensors", "tokenizer.json")
WPE = "transformer.wpe.weight"
DAMAGED: list[tuple[str, str, Damage]] = [  # what the message names, what it is, how it is made
    *(
        (name, f"{value!r:.20}", config(**{name: value}))
        for name, values in VALUES.items()
        for value in values
    ),
    *(("config.json", what, raw("config.json", content)) for what, content in CONTENTS.items()),
    *(("tokenizer", what, raw("tokenizer.json", content)) for what, content in CONTENTS.items()),
    *(
        ("model.safetensors", what, raw("model.safetensors", content))
        for what, content in (
            CONTENTS | {"a long header": b"\xff" * 7 + b"\x7f", "no JSON": b"\1" + b"\0" * 7}
        ).items()
    ),
    ("safetensors", "missing", special("model.safetensors", Path.exists)),
    *((name, "missing", special(name, Path.exists)) for name in ("config.json", "tokenizer.json")),
    *((name, what, special(name, make)) for name in FILES for what, make in NO_FILES.items()),
    ("wte.weight has shape", "one token more", config(vocab_size=261)),
    ("wpe.weight has shape", "more positions", config(n_positions=10**9)),
    ("wte.weight has shape", "another width", config(n_embd=2 * 10**9)),
    ("n_layer = 1000000", "a million layers", config(n_layer=10**6)),
    ("n_head", "heads that do not divide the width", config(n_head=3)),
    ("c_fc.weight has shape", "another inner width", config(n_inner=1)),
    ("missing tensor: wpe.weight", "missing", weights(lambda w: w.pop(WPE))),
    ("unknown tensor: more", "one more", weights(lambda w: w.update(more=torch.zeros(1)))),
    ("wpe.weight is stored twice", "twice", weights(lambda w: w.update({"wpe.weight": torch.zeros(1)}))),
    ("wpe.weight has shape", "the other way round", weights(lambda w: w.update({WPE: torch.zeros(16, 32)}))),
    ("wpe.weight", "of integers", header(lambda h: h[WPE].update(dtype="I32"))),
    ("model.safetensors", "of an unknown dtype", header(lambda h: h[WPE].update(dtype="X99"))),
    ("model.safetensors", "of another shape", header(lambda h: h[WPE].update(shape=[1]))),
    ("model.safetensors", "a negative size", header(lambda h: h[WPE].update(shape=[-32, -16]))),
    ("model.safetensors", "a size past 64 bits", header(lambda h: h[WPE].update(shape=[HUGE, 16]))),
    ("model.safetensors", "offsets past the end", header(lambda h: h[WPE].update(data_offsets=[0, 2**40]))),
    ("model.safetensors", "offsets that overlap", header(lambda h: h[WPE].update(data_offsets=[4, 2052]))),
    ("model.safetensors", "tensors in a list", header(lambda h: h.update({WPE: []}))),
    (
        "is damaged",
        "a WordPiece without its fields",
        tokenizer(lambda t: t["model"].update(type="WordPiece")),
    ),
    ("dropout", "0.5", tokenizer(lambda t: t["model"].update(dropout=0.5))),
    ("vocabulary", "a list", tokenizer(lambda t: t["model"].update(vocab=[]))),
    ("the id of 'zz'", "-1", tokenizer(lambda t: t["model"]["vocab"].update(zz=-1))),
    ("the id of 'zz'", "2**32", tokenizer(lambda t: t["model"]["vocab"].update(zz=2**32))),
    ("the id of 'zz'", "true", tokenizer(lambda t: t["model"]["vocab"].update(zz=True))),
    ("two tokens with the id 5", "5", tokenizer(lambda t: t["model"]["vocab"].update(zz=5))),
    ("ids to 260", "past the model's", tokenizer(lambda t: t["model"]["vocab"].update(zz=260))),
    (
        "tokenizer",
        "merges of what is not there",
        tokenizer(lambda t: t["model"].update(merges=[["zz", "q"]])),
    ),
    ("tokenizer", "merges that are numbers", tokenizer(lambda t: t["model"].update(merges=[1]))),
]


def load_damaged(world: World, damage: Damage) -> None:
    """Load a small checkpoint that was damaged; what was written for it is taken away again."""
    with world.place() as folder:
        save_small_checkpoint(folder)
        for name in ("vocab.json", "merges.txt"):
            (folder / name).unlink()
        damage(folder)
        with world.untouched(folder):
            load_model(folder)


CASES = [
    *values_of("load_model, source", "source", lambda _, bad: load_model(bad), SOURCES, CheckpointError),
    *values_of(
        "load_model, source",
        "there is no directory",
        lambda _, bad: load_model(bad),
        {repr(name)[:20]: name for name in NOWHERE},
        CheckpointError,
    ),
    *values_of(
        "load_model, source",
        "no random model",
        lambda _, bad: load_model(bad),
        {repr(name): name for name in NAMES},
        CheckpointError,
    ),
    *values_of(
        "load_model, dtype", "dtype", lambda _, bad: load_model("random:gpt2", bad), DTYPES, CheckpointError
    ),
    *values_of(
        "load_model, seed", "seed", lambda _, bad: load_model("random:gpt2", seed=bad), SEEDS, CheckpointError
    ),
    *(
        BadInput(
            f"load_model, {'config' if name in VALUES else 'files'}",
            name,
            what,
            lambda world, damage=damage: load_damaged(world, damage),
            CheckpointError,
        )
        for name, what, damage in DAMAGED
    ),
]
