"""Texts from chunks that nobody checks: right ones go on as the engine does, wrong ones do not."""

import pytest
import torch

from labkit import LADDER, InferenceEngine, SamplingParams, load_model
from labkit.engine.packed_chunk import PackedChunk
from labkit.learn.lesson_13 import chunks
from labkit.learn.lesson_13.by_hand import texts_by_hand

pytestmark = pytest.mark.slow
PROMPTS = ["To be, or not to be", "JULIET:\n", "KING HENRY VI:\nWhat news from Warwick?"]


@pytest.fixture(scope="module")
def model():
    return load_model("data/tiny-gpt2").to("cpu", torch.float32)


@pytest.fixture(scope="module")
def expected(model):
    engine = InferenceEngine(model, LADDER["12"].options, device="cpu", dtype=torch.float32)
    return [text.text for text in engine.generate(PROMPTS, SamplingParams(8, stop_on_eos=False))]


class OneAtATime(chunks.InRows):
    def share_out(self, num_left, max_tokens):
        return chunks.all_to_first(num_left, max_tokens)


@pytest.mark.parametrize("part", [PackedChunk, chunks.InRows, OneAtATime])
@pytest.mark.parametrize("max_tokens", [3, 8, 100])
def test_right_chunks_go_on_as_rung_12_does(model, expected, part, max_tokens):
    assert texts_by_hand(model, part, PROMPTS, max_tokens, 8) == expected


@pytest.mark.parametrize("bug", [chunks.GoesBack, chunks.BeginsAtZero, chunks.BeginsOneEarly])
def test_a_bug_changes_a_text(model, expected, bug):
    made = texts_by_hand(model, bug, PROMPTS, 8, 8)
    assert made != expected and len(made) == 3
