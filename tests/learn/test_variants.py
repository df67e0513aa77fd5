"""Files of measured variants: what they say of themselves, and what is asked of them that is not there."""

import json

import pytest

from labkit.learn import variants
from labkit.learn.variants import Variants
from labkit.paths import ROOT

FILE = {
    "device": "a GPU",
    "date": "2026-01-01",
    "steps": {"measured": "by replay", "samples": [{"rows": 1, "us": 2.5}]},
    "ends": {"steps": {"measured": "alone", "date": "2026-01-02", "samples": []}},
}


@pytest.fixture
def made(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine.json").write_text(json.dumps(FILE), encoding="utf-8")
    monkeypatch.setattr(variants, "ROOT", tmp_path)
    return Variants("mine")


def test_samples_have_their_names_and_parts_say_how_they_were_measured(made):
    (sample,) = made.measured().steps.samples
    assert (sample.rows, sample.us) == (1, 2.5)
    assert made.source("steps") == "a GPU, 2026-01-01: by replay"
    assert made.source("ends.steps") == "a GPU, 2026-01-02: alone"  # a part with a date of its own


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data").glob("*_variants_*.json")), ids=lambda path: path.stem
)
def test_every_file_says_where_and_how_its_samples_were_measured(path):
    about = Variants(path.stem)
    parts = [name for name, value in vars(about.measured()).items() if hasattr(value, "samples")]
    assert parts and about.measured().device.startswith("AMD" if path.stem.endswith("_cpu") else "NVIDIA")
    for name in parts:
        assert about.part(name).samples and about.source(name)
