"""Lesson 20's 8 bits: a network with other matrices, its bytes, and the engines that take it."""

import pytest
import torch
from helpers import make_engine, small_model
from torch import nn

from labkit import LADDER, InferenceEngine, SamplingParams
from labkit.bench import dense_tokens
from labkit.errors import OptionError
from labkit.learn.lesson_20 import int8
from labkit.learn.lesson_20.int8 import Int8Linear, Int8Network, int8_model


def test_every_matrix_is_replaced_and_the_model_is_left_alone():
    before = small_model()
    network = Int8Network(before.network, Int8Linear)
    assert not [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert sum(isinstance(m, Int8Linear) for m in network.modules()) == 2 * 4 + 1
    assert sum(isinstance(m, nn.Linear) for m in before.network.modules()) == 2 * 4 + 1
    assert isinstance(network.lm_head, Int8Linear)


def test_to_another_dtype_the_numbers_stay_8_bits():
    model = int8_model(small_model(), Int8Linear).to("cpu", torch.float16)
    head = model.network.lm_head
    assert (head.numbers.dtype, head.scale.dtype, model.dtype) == (torch.int8, torch.float16, torch.float16)
    assert model.name == "random:small with weights in 8 bits"


def test_an_engine_with_fused_layers_refuses_it():
    model = int8_model(small_model(), Int8Linear)
    with pytest.raises(OptionError, match=r"does not fit Int8Network.*layer_kernels = 'separate'"):
        make_engine(model, LADDER["10"].options)


@pytest.mark.cuda
def test_on_a_gpu_a_graph_of_layers_in_8_bits_makes_the_models_own_tokens(tiny):
    model = int8_model(tiny, Int8Linear).to("cuda", torch.float32)
    prompts = [tiny.tokenizer.encode(text) for text in ("To be, or not", "JULIET:\n")]
    engine = InferenceEngine(model, int8.OPTIONS, device="cuda", dtype=torch.float32)
    done = engine.generate(prompts, SamplingParams(16, stop_on_eos=False))
    assert engine.stats().launch == "graph"
    assert [completion.token_ids for completion in done] == dense_tokens(model, prompts, 16)
