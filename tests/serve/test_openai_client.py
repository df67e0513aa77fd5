"""OpenAI's own client gets what the engine makes, in one piece and streamed."""

import time
from functools import partial

import openai
import pytest
from helpers import make_engine
from http_server import NAME, serving
from small_checkpoint import save_small_checkpoint

from labkit import CacheConfig, InferenceEngine, SamplingParams, load_model

PROMPTS = [[1, 2, 3], [7], list(range(20, 33)), [9, 9]]
GREEDY = {"model": NAME, "temperature": 0, "max_tokens": 8}
DRAWN = {
    "model": NAME,
    "temperature": 0.8,
    "top_p": 0.95,
    "seed": 7,
    "max_tokens": 8,
    "extra_body": {"top_k": 40},
}


EIGHT = SamplingParams(8)


def text_alone(prompt, params=EIGHT):
    """What a request's answer is, whoever else is served."""
    return make_engine(prefix_cache=False).generate([prompt], params)[0].text


@pytest.fixture(scope="module")
def door():
    with serving(make_engine(max_blocks_per_layer=256)) as door:
        yield door
        assert door.streaming.num_unfinished == 0


@pytest.mark.parametrize("continuous", [False, True])
def test_a_stream_and_each_of_its_frames_count_tokens_if_they_are_asked_to(door, continuous):
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    stream = door.client.completions.create(prompt=PROMPTS[:2], stream=True, stream_options=options, **GREEDY)
    *pieces, last = stream
    assert len({piece.id for piece in (*pieces, last)}) == 1  # a reader that is behind gets few of them
    assert last.choices == [] and (last.usage.prompt_tokens, last.usage.completion_tokens) == (4, 16)
    for index, prompt in enumerate(PROMPTS[:2]):
        own = [piece for piece in pieces if piece.choices[0].index == index]
        assert "".join(piece.choices[0].text for piece in own) == text_alone(prompt)
        *before, end = (piece.choices[0].finish_reason for piece in own)
        assert end == "length" and not any(before)
        if not continuous:
            assert all(piece.usage is None for piece in own)
            continue
        usages = [piece.usage for piece in own]
        made = [usage.completion_tokens for usage in usages]
        assert made == sorted(made) and made[0] > 0 and made[-1] == 8
        assert all(usage.prompt_tokens == len(prompt) for usage in usages)
        assert all(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens for usage in usages)


def test_every_prompt_has_n_answers_and_seeds_follow_each_other(door):
    made = door.client.completions.create(prompt=PROMPTS[:2], n=2, **DRAWN)
    params = [SamplingParams(8, temperature=0.8, top_p=0.95, top_k=40, seed=seed) for seed in (7, 8)]
    expected = [text_alone(prompt, p) for prompt in PROMPTS[:2] for p in params]
    assert [choice.text for choice in made.choices] == expected and len(set(expected)) == 4
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens) == (4, 32, 36)
    assert {choice.finish_reason for choice in made.choices} == {"length"}
    assert (made.model, made.object) == (NAME, "text_completion")


@pytest.mark.slow
def test_a_conversation_is_what_the_models_template_makes_of_it(tmp_path):
    save_small_checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}", encoding="utf-8"
    )
    model, talk = load_model(tmp_path), [{"role": "user", "content": "To be"}]
    expected = InferenceEngine(model).generate([model.chat_prompt(talk)], SamplingParams(20))[0]
    with serving(InferenceEngine(model, cache=CacheConfig(block_size=3, max_blocks_per_layer=10))) as door:
        ask = partial(door.client.chat.completions.create, model=NAME, messages=talk, temperature=0)
        made = ask(max_completion_tokens=20)
        assert (made.choices[0].message.content, made.choices[0].message.role) == (expected.text, "assistant")
        assert made.usage.prompt_tokens == len(expected.prompt_token_ids)
        developer = ask(messages=[{"role": "developer", "content": "To be"}], max_tokens=8)
        assert developer.usage == ask(messages=[{"role": "system", "content": "To be"}], max_tokens=8).usage
        # Without a limit: as far as there is room.
        first, *pieces = ask(stream=True, stream_options={"continuous_usage_stats": True})
        assert first.choices[0].delta.role == "assistant"
        assert pieces[0].choices[0].delta.model_fields_set == {"content"}  # some clients read no null
        prompt = len(expected.prompt_token_ids)
        assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (prompt, 0)
        assert pieces[-1].usage.total_tokens == prompt + pieces[-1].usage.completion_tokens > prompt + 20
        text = "".join(piece.choices[0].delta.content for piece in pieces)
        assert text.startswith(expected.text[:10]) and pieces[-1].choices[0].finish_reason == "length"
        parts = [
            {"role": "user", "content": [{"type": "text", "text": "To "}, {"type": "text", "text": "be"}]}
        ]
        assert ask(messages=parts, max_tokens=20).choices[0].message.content == expected.text
        for wrong in (
            [],
            [{"role": "user"}],
            [*talk, {"role": "tool", "content": "42", "tool_call_id": "1"}],
        ):
            with pytest.raises(openai.BadRequestError, match=r"message"):
                ask(messages=wrong)


def test_the_model_that_is_served_is_listed(door):
    assert [model.id for model in door.client.models.list()] == [NAME]
    card = door.client.models.retrieve(NAME)
    assert (card.max_model_len, card.root) == (64, door.streaming.voice.name)


def test_a_client_that_leaves_gives_its_blocks_back(door):
    endless = GREEDY | {"max_tokens": 60}
    for _ in range(3):
        stream = door.client.completions.create(prompt=[5], stream=True, **endless)
        next(iter(stream))
        stream.close()
    with pytest.raises(openai.APITimeoutError):
        door.client.with_options(timeout=0.001).completions.create(prompt=[6], **endless)
    while door.streaming.num_unfinished:  # for ever, if a request is lost
        time.sleep(0.01)
    assert door.engine.stats().running == 0
