"""A small checkpoint, to be changed."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def sound(tmp_path_factory, random_hf, save_checkpoint) -> Path:
    """A small checkpoint that loads. Not to be changed: see `directory`."""
    hf = random_hf(vocab_size=300, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    return save_checkpoint(hf, tmp_path_factory.mktemp("sound"))


@pytest.fixture
def directory(sound: Path, tmp_path: Path) -> Path:
    """A copy of it for one test to change."""
    return shutil.copytree(sound, tmp_path / "checkpoint")
