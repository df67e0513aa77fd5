"""Log probabilities of a request's tokens: those of transformers, on every rung."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from helpers import EXACT, assert_no_block_is_lost, engines_by_day, make_engine, tokens_of

from labkit import LADDER, FinishReason, InferenceEngine, LanguageModel, SamplingParams
from labkit.bench.parity import transformers_model
from labkit.engine import Completion
from labkit.engine.sampling import ScoredToken, logprobs_of
from labkit.engine.sampling import logprobs as logprobs_module
from labkit.engine.step.fused import FusedDeviceStep
from labkit.errors import OptionError
from labkit.learn.lesson_08.graphs import ToyGraphedStep
from labkit.model.small import SMALL_LLAMA, SMALL_QWEN3, small_model

TEXTS = ["To be, or not", "To be, or not", "O", "The king is", "Romeo, wherefore art thou"]
PROMPTS = [(1, 2, 3), (1, 2, 3), (7, 8, 9, 10), tuple(range(20, 31)), (1, 2, 3, 9)]  # of small Llamas
EACH = [
    SamplingParams(9, stop_on_eos=False, logprobs=3),
    SamplingParams(12, stop_on_eos=False, temperature=0.9, top_k=30, top_p=0.9, seed=5, logprobs=20),
    SamplingParams(7, stop_on_eos=False),
    SamplingParams(10, stop_on_eos=False, temperature=1.2, seed=2, logprobs=0),
    SamplingParams(11, stop_on_eos=False, min_p=0.1, temperature=0.7, seed=8),
]


reference_of = cache(transformers_model)


@torch.inference_mode()
def check(model: LanguageModel, done: Completion, num_top: int | None, atol: float = 2e-5) -> None:
    """Every token of a completion has what transformers' model says, if its request asked."""
    assert len(done.logprobs) == (0 if num_top is None else len(done.token_ids))
    if num_top is None or not done.token_ids:
        return
    input_ids = torch.tensor([[*done.prompt_token_ids, *map(int, done.token_ids)]], device=model.device)
    logits = reference_of(model)(input_ids).logits[0, len(done.prompt_token_ids) - 1 : -1].cpu()
    for token_id, row, logprobs in zip(
        done.token_ids, logits.log_softmax(dim=-1), done.logprobs, strict=True
    ):
        assert logprobs.token_id == token_id
        assert logprobs.logprob == pytest.approx(row[token_id].item(), abs=atol)
        values = [value for _, value in logprobs.top]
        assert values == pytest.approx(row.topk(num_top).values.tolist(), abs=atol)
        assert values == pytest.approx([row[top_id].item() for top_id, _ in logprobs.top], abs=atol)
        assert (
            values == sorted(values, reverse=True) and len({top_id for top_id, _ in logprobs.top}) == num_top
        )


def check_all(engine: InferenceEngine, prompts: Sequence, each: Sequence[SamplingParams], **how) -> None:
    """The completions of an engine, and that its tokens are those of requests that ask for nothing."""
    completions = engine.generate(prompts, each)
    for done, params in zip(completions, each, strict=True):
        check(engine.model, done, params.logprobs, **how)
    if not how:  # on a GPU other products may be taken for another batch
        without = engine.generate(prompts, [replace(params, logprobs=None) for params in each])
        assert tokens_of(completions) == tokens_of(without)


@pytest.mark.slow
@engines_by_day
def test_they_are_those_of_transformers_for_gpt2(tiny, options):
    """Greedy, drawn and filtered; whole prompts and parts of them from the prefix cache; beside requests that
    ask for none; and with a stop string whose tokens have them, too."""
    engine = make_engine(tiny, options, max_batch_size=4, prefill_chunk_tokens=3)
    prompts = [tiny.tokenizer.encode(text) for text in TEXTS]
    check_all(engine, prompts, EACH)
    (whole,) = engine.generate([prompts[3]], EACH[0])
    stop = tiny.tokenizer.decode(whole.token_ids[3:5]).strip()
    (stopped,) = engine.generate([prompts[3]], replace(EACH[0], stop=stop))
    assert stopped.finish_reason is FinishReason.STOP and 0 < len(stopped.token_ids) < 9
    check(tiny, stopped, 3)
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@pytest.mark.parametrize("config", [SMALL_LLAMA, SMALL_QWEN3], ids=["llama", "qwen3"])
@pytest.mark.parametrize("number", EXACT)
def test_they_are_those_of_transformers_for_the_llama_family(config, number):
    """In so little room that requests are preempted: what a token had before, it still has."""
    engine = make_engine(
        small_model(config=config),
        LADDER[number].options,
        max_blocks_per_layer=12,
        prefill_max_batch_size=1,
    )
    check_all(engine, PROMPTS, EACH)
    assert engine.stats().counters.preemptions > 0
    assert_no_block_is_lost(engine)


@pytest.mark.parametrize("number", ["00", "06", "10", "14"])
def test_a_batch_in_which_nobody_asks_computes_none(tiny, monkeypatch, number):
    monkeypatch.setattr(logprobs_module.RowLogprobs, "__init__", None)
    engine = make_engine(tiny, LADDER[number].options)
    (done,) = engine.generate(["To be"], SamplingParams(4))
    assert done.logprobs == () and not any(isinstance(token_id, ScoredToken) for token_id in done.token_ids)
    with pytest.raises(TypeError):
        engine.generate(["To be"], SamplingParams(4, logprobs=0))


@pytest.mark.slow
@pytest.mark.parametrize("number", ["05", "10", "14"])
def test_pieces_of_a_stream_steps_and_a_cancelled_request_have_them(tiny, number):
    engine = make_engine(tiny, LADDER[number].options)
    params = replace(EACH[0], logprobs=1)
    *_, last = pieces = list(engine.stream("To be", params))
    assert [each for piece in pieces for each in piece.logprobs] == list(last.completion.logprobs)
    check(tiny, last.completion, 1)
    request_id = engine.add_request("To be", params)
    outputs = [output for _ in range(4) for output in engine.step()]
    cancelled = engine.cancel(request_id)
    check(tiny, cancelled, 1)
    assert logprobs_of(output.token_id for output in outputs) == cancelled.logprobs[: len(outputs)] != ()


def test_tokens_of_a_text_in_the_prefix_cache_are_mere_numbers():
    engine = make_engine(small_model(config=SMALL_LLAMA), LADDER["14"].options)
    engine.generate(PROMPTS, EACH[0])
    kept = [token_id for entry in engine.prefix_cache for token_id in entry.token_ids]
    assert len(kept) > 11 and {type(token_id) for token_id in kept} == {int}


@pytest.mark.slow
def test_a_launch_of_the_readers_own_is_left_out_for_who_asks(tiny):
    """It says nothing of its logits, so the step runs kernel by kernel."""

    class Own:
        def __init__(self, device_step):
            self.toy, self.calls = ToyGraphedStep(device_step), 0

        def __call__(self, *args):
            self.calls += 1
            return self.toy(*args)

    engine = make_engine(tiny, LADDER["10"].options, parts={"launch": Own})
    check_all(engine, ["To be", "O"], EACH[:1] * 2)
    assert engine.decode_step.device_step.calls > 0


class LeavesNoLogits(ToyGraphedStep):
    """As graphs of a step that hides them."""

    def logits_left(self, batch_size, draws):
        return None


@pytest.mark.parametrize("parts", [{}, {"launch": LeavesNoLogits}], ids=["kernel by kernel", "in graphs"])
def test_a_step_of_the_readers_own_that_hides_its_logits_fails_for_who_asks_alone(tiny, parts):
    class Hides(FusedDeviceStep):
        def __call__(self, batch_size, max_context_len, draws):
            slot_mapping = self.slots.slot_mapping[:batch_size]
            logits = self.logits(self.through_layers(slot_mapping, max_context_len))
            return self.advance(logits.argmax(dim=-1), slot_mapping)

    options = LADDER["10" if parts else "09"].options
    engine = make_engine(tiny, options, parts={"layer_kernels": Hides} | parts)
    (expected,) = engine.generate(["To be"], SamplingParams(4))
    with pytest.raises(OptionError, match="nobody can ask for logprobs here: Hides samples"):
        engine.generate(["To be"], SamplingParams(4, logprobs=0))
    assert tokens_of(engine.generate(["To be"], SamplingParams(4))) == [expected.token_ids]
    assert_no_block_is_lost(engine)


@pytest.mark.cuda
@pytest.mark.parametrize("number", EXACT)
def test_on_a_gpu_they_are_those_of_transformers(tiny, number):
    """In graphs from rung 08 on, whose logits lie in memory that the graphs share; batches of many sizes."""
    together = {"max_batch_size": 48, "prefill_max_batch_size": 48, "prefill_chunk_tokens": 16}
    engine = make_engine(tiny, LADDER[number].options, device="cuda", block_size=8, **together)
    for copies in (1, 9):
        prompts = [tiny.tokenizer.encode(text) for text in TEXTS] * copies
        check_all(engine, prompts, EACH * copies, atol=2e-3)
