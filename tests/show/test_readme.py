"""What README.md, INSTALL.md, BENCHMARKS.md and RELIABILITY.md show is what was recorded."""

import re

import pytest
from PIL import Image

from labkit.paths import ROOT
from labkit.results import load, load_gpu_tests
from labkit.show import readme

README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in readme.PAGES}


@pytest.mark.slow
@pytest.mark.parametrize("page", TEXTS)
def test_what_a_page_shows_is_made_from_the_records(page):
    """If it is not: `python -m labkit.show.readme`."""
    assert readme.filled(TEXTS[page]) == TEXTS[page]


def test_everything_that_is_made_is_shown_once():
    shown = [name for text in TEXTS.values() for name in readme.MARKED.findall(text)]
    assert sorted(shown) == sorted(readme.MADE)


def test_the_readme_is_short_and_says_how_to_begin():
    assert len(README.splitlines()) <= 120
    assert all(command in README for command in ("git clone", "make lab", "make test"))


@pytest.mark.slow
def test_the_readmes_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example, {})
    assert len(capsys.readouterr().out.split()) > 30


def test_the_picture_is_of_the_record_that_is_here():
    assert Image.open(readme.PICTURE).text["Source"] == readme.record_hash(readme.LADDER_RECORD)
    assert f"({readme.PICTURE.relative_to(ROOT).as_posix()})" in README


@pytest.mark.slow
def test_the_words_beside_the_figures_are_about_the_records():
    ladder, others = load(readme.LADDER_RECORD), [load(name) for name in readme.LADDER_RECORDS]
    assert (ladder.num_requests, ladder.max_new_tokens, ladder.max_batch_size) == (64, 512, 64)
    assert ladder.model == "random:gpt2" and "H100 with 64 requests of 512 tokens in one batch" in README
    assert {record.host.device for record in others} == {"NVIDIA H100 80GB HBM3"}
    loads = load(readme.LOADS_RECORD)
    assert (loads.model, loads.host.device) == ("random:gpt2", "NVIDIA H200") and "on one H200" in README
    on_h200 = [load(name) for name in (*readme.H200_RECORDS.values(), "tiles_medium_h200")]
    assert {record.host.device for record in on_h200} == {"NVIDIA H200"}
    assert load_gpu_tests().failed == 0
