"""Damage to files: drawn from a seed, in one file, and of every kind."""

import json
import random

import pytest

from labkit.bench import mutations
from labkit.bench.mutations import SPECIALS, Special, mutate, mutate_bytes, mutate_value, near, write

FILES = {"a.json": b'{"a": [1, {"b": "x"}], "c": null}', "b.txt": b"some text\n"}


def test_the_same_seed_damages_the_same_file_in_the_same_way():
    made = [[mutate(FILES, random.Random(seed)) for seed in range(50)] for _ in range(2)]
    assert made[0] == made[1]
    for files, what in made[0]:
        changed = [name for name in FILES if files[name] != FILES[name]]
        assert len(changed) <= 1 and what.split()[0] in FILES


def test_every_kind_of_damage_is_drawn():
    said = [mutate(FILES, random.Random(seed))[1] for seed in range(3000)]
    kinds = ["ends", "lacks bytes", "has bytes twice", "has other bytes", "has more bytes", "a bit flipped"]
    kinds += ["begins with another length", "odd", "near", "other", "gone", "again", "is b.txt"]
    for kind in [*kinds, *(special.what for special in SPECIALS)]:
        assert any(kind in what for what in said), kind


def test_a_safetensors_header_is_changed_and_its_length_with_it():
    header = json.dumps({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    raw = len(header).to_bytes(8, "little") + header + b"\0\0\0\0"
    for seed in range(20):
        made, what = mutations.mutate_json(raw, random.Random(seed))
        size = int.from_bytes(made[:8], "little")
        assert what.startswith("in its header") and made[8 + size :] == b"\0\0\0\0"
        json.loads(made[8 : 8 + size])


@pytest.mark.parametrize("value", [{"a": {"b": [1, 2]}}, [1, [2]], {"a": 1}, 5, [], {}])
def test_a_value_is_changed_in_one_place(value):
    for seed in range(50):
        made, _ = mutate_value(json.loads(json.dumps(value)), random.Random(seed))
        json.dumps(made)


@pytest.mark.parametrize("value", [True, None, 5, 1.5, "x", "", [1], [], {"a": 1}])
def test_what_is_near_a_value_is_another_one(value):
    assert any(near(value, random.Random(seed)) != value for seed in range(9))


def test_bytes_without_any_can_be_damaged():
    for seed in range(30):
        assert isinstance(mutate_bytes(b"", random.Random(seed))[0], bytes)


@pytest.mark.parametrize("special", SPECIALS, ids=lambda special: special.what)
def test_what_stands_in_a_files_place_is_no_file(tmp_path, special: Special):
    write({"a": special, "b": b"x"}, tmp_path)
    assert not (tmp_path / "a").is_file() and (tmp_path / "b").read_bytes() == b"x"
