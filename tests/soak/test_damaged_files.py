"""Files with random damage: what reads them does, or refuses them with an error of labkit's."""

import json
import math
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from bad_values import NO_FILES
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import run_of, runs_record
from small_checkpoint import save_small_checkpoint

from labkit import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig, load_model, paths
from labkit.errors import LabkitError
from labkit.learn.progress import progress
from labkit.model import GPT2Config
from labkit.model.llama_config import LlamaConfig
from labkit.results.files import load_file

pytestmark = pytest.mark.slow

ODD_VALUES = [
    *(None, True, 0, -1, 1, 255, 2**31, 2**63, 10**30, 0.5, 1e308, math.nan, math.inf),
    *("", "x", "\0", "\n", "\ud800", "../x", "x" * 10_000, [], [0], [[]], {}, {"": None}, [None] * 1000),
]
ODD_BYTES = [b"", b"\0" * 8, b"\xff" * 8, b"{", b"}", b'"', b",", b"[" * 50_000, b"9" * 5000, b"\xed\xa0\x80"]


@st.composite
def damaged(draw, files):
    """The files, one of them with a value of its JSON changed, with other bytes, or with no file in its
    place: then its content is the name of what is."""
    name = draw(st.sampled_from(sorted(files)))
    raw = files[name]
    how = draw(st.sampled_from(["value"] * 4 * (name != "merges.txt") + ["bytes"] * 2 + ["place"]))
    if how == "place":
        raw = draw(st.sampled_from(sorted(NO_FILES)))
    elif how == "bytes":
        begin = draw(st.just(0) | st.integers(0, len(raw)))
        end = draw(st.sampled_from([begin, begin + 1, begin + 8, len(raw)]))
        raw = raw[:begin] + draw(st.sampled_from(ODD_BYTES) | st.binary(max_size=8)) + raw[end:]
    elif name.endswith(".safetensors"):  # its header is JSON, behind its length
        size = int.from_bytes(raw[:8], "little")
        header = changed(draw, raw[8 : 8 + size])
        raw = len(header).to_bytes(8, "little") + header + raw[8 + size :]
    else:
        raw = changed(draw, raw)
    return {**files, name: raw}


def changed(draw, raw: bytes) -> bytes:
    """JSON with one value, however deep, replaced, taken out or there twice."""
    owner: Any = {"root": json.loads(raw)}
    root, key = owner, "root"
    while owner[key] and isinstance(owner[key], dict | list) and draw(st.integers(0, 3)):
        owner = owner[key]
        key = draw(st.sampled_from(list(owner) if isinstance(owner, dict) else range(len(owner))))
    old, how = owner[key], draw(st.sampled_from(["odd", "near", "gone", "twice"]))
    if how == "gone":
        del owner[key]
    elif how == "twice" and isinstance(owner, list):
        owner.insert(key, old)
    elif how == "twice":
        owner[f"{key}x"] = old
    else:
        numbers = [old + 1, -old, 2 * old, float(old)] if isinstance(old, int | float) else []
        owner[key] = draw(st.sampled_from(ODD_VALUES if how == "odd" else [str(old), [old], *numbers]))
    return json.dumps(root.get("root")).encode()


def write(files: dict[str, bytes | str], folder: Path) -> None:
    for name, content in files.items():
        if isinstance(content, str):
            NO_FILES[content](folder / name)  # type: ignore[operator]
        else:
            (folder / name).write_bytes(content)


def checkpoint_without(*names: str, kind: type = GPT2Config) -> dict[str, bytes]:
    """The files of a small checkpoint, with one kind of tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        save_small_checkpoint(Path(folder), kind)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name not in names}


def read_checkpoint(folder: Path) -> None:
    """Load the model and have it go on with a text: what is loaded runs."""
    sizes = {"cache": CacheConfig(4), "scheduler": SchedulerConfig(max_batch_size=1)}
    model = load_model(folder)
    engine = InferenceEngine(model, device="cpu", dtype=torch.float32, **sizes)
    engine.generate(["The"], SamplingParams(max_new_tokens=2))
    if model.chat_template is not None:
        model.chat_prompt([{"role": "user", "content": "The"}])


def read_progress(folder: Path) -> None:
    with mock.patch.object(paths, "MINE", folder):
        progress()


RUN = run_of(new_tokens=(3,), gaps_us=(5, 6), append_paths={"loop": 4})
RECORD = runs_record([("00", RUN), ("01", RUN)], num_requests=1, max_new_tokens=3, max_batch_size=1)
PROGRESS = {"01": {"gates": ["block_tables"], "guesses": {"Rows": {"guess": 5.0, "actual": 12.0}}}}
TARGETS: dict[str, tuple[dict[str, bytes], Callable[[Path], object]]] = {
    "a checkpoint": (checkpoint_without("vocab.json", "merges.txt"), read_checkpoint),
    "a Llama": (checkpoint_without("vocab.json", "merges.txt", kind=LlamaConfig), read_checkpoint),
    "a checkpoint with vocab.json": (checkpoint_without("tokenizer.json"), read_checkpoint),
    "a record": (
        {"record.json": json.dumps(RECORD.to_dict()).encode()},
        lambda folder: load_file(folder / "record.json").to_dict(),
    ),
    "progress": ({"progress.json": json.dumps(PROGRESS).encode()}, read_progress),
}


@pytest.mark.parametrize(("files", "read"), TARGETS.values(), ids=TARGETS)
def test_damaged_files_are_read_or_refused(tmp_path, files, read):
    write(files, tmp_path)
    read(tmp_path)  # they were sound
    refused = []

    @settings(deadline=timedelta(seconds=20))
    @given(damaged(files))
    def holds(damage):
        with tempfile.TemporaryDirectory() as folder:
            write(damage, Path(folder))
            try:
                read(Path(folder))
            except LabkitError as error:
                refused.append(str(error))
                str(error).encode()  # a terminal can show it
                assert len(str(error)) <= 1000 and "\n" not in str(error)

    holds()
    assert refused
