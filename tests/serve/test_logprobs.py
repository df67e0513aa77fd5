"""Log probabilities over HTTP, in OpenAI's shape, as its own client reads them."""

import json
import math

import openai
import pytest
from helpers import make_engine
from http_server import serving
from hypothesis import example, given
from hypothesis import strategies as st

from labkit import InferenceEngine, LanguageModel, SamplingParams
from labkit.engine.sampling import TokenLogprobs, logprobs_of
from labkit.model.chat import ChatTemplate
from labkit.serve.logprobs import VERY_UNLIKELY, Spelling, TextLogprobs, number
from labkit.serve.wire import Made, encoded, token_of

PROMPT = "To be, or not"
WILD = {"model": "small", "temperature": 20.0, "max_tokens": 40, "seed": 3}  # with parts of characters
TALK = [{"role": "user", "content": "To be"}]


@pytest.fixture(scope="module")
def model(tiny):
    template = ChatTemplate("{% for m in messages %}{{ m['content'] }}{% endfor %}", {})
    return LanguageModel("chatting", tiny.network, tiny.tokenizer, chat_template=template)


@pytest.fixture(scope="module")
def door(model):
    with serving(make_engine(model, block_size=16, max_blocks_per_layer=64)) as door:
        yield door


@pytest.fixture(scope="module")
def expected(model):
    params = SamplingParams(40, temperature=20.0, seed=3, logprobs=3)
    (done,) = InferenceEngine(model, device="cpu").generate([PROMPT], params)
    assert "\N{REPLACEMENT CHARACTER}" in model.tokenizer.decode(done.token_ids)
    return done


def same(one, other) -> bool:
    return all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_a_completion_has_those_of_the_engine_with_each_tokens_text_and_place(door, expected, model):
    choice = door.client.completions.create(prompt=PROMPT, logprobs=3, **WILD).choices[0]
    logprobs = choice.logprobs
    assert choice.text == expected.text
    assert same(logprobs.token_logprobs, [each.logprob for each in expected.logprobs])
    assert len(logprobs.tokens) == 40
    columns = logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset, logprobs.top_logprobs
    for token, logprob, begins, top in zip(*columns, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[begins : begins + len(token)] == token
        assert 3 <= len(top) <= 4 and top[token] == pytest.approx(logprob, abs=1e-6)
    assert any(token.startswith("bytes:\\x") for token in logprobs.tokens)


@given(st.lists(st.integers(0, 2047), min_size=1, max_size=40))
@example([85, 128, 85, 85])
@example([85, 0, 85, 85])
def test_each_tokens_text_is_at_its_offset(tiny, token_ids):
    """Behind half a character, too, and an end of the text that was ignored."""
    told = TextLogprobs(Spelling(tiny.tokenizer)).of([TokenLogprobs(each, -1.0, ()) for each in token_ids])
    text = tiny.tokenizer.decode(token_ids)
    for token_id, token, offset in zip(token_ids, told.tokens, told.text_offset, strict=True):
        if token_id != tiny.tokenizer.eos_token_id and not token.startswith("bytes:"):
            assert text[offset : offset + len(token)] == token
    assert told.text_offset == sorted(told.text_offset) and told.text_offset[-1] <= len(text)


@pytest.mark.slow
@pytest.mark.parametrize("logprobs", [0, 3])
def test_a_stream_has_them_with_the_text_that_they_are_of(door, logprobs):
    whole = door.client.completions.create(prompt=PROMPT, logprobs=logprobs, **WILD).choices[0]
    pieces = door.client.completions.create(prompt=PROMPT, logprobs=logprobs, stream=True, **WILD)
    choices = [piece.choices[0] for piece in pieces]
    assert "".join(choice.text for choice in choices) == whole.text
    for field in ("tokens", "text_offset"):
        joined = [each for choice in choices for each in getattr(choice.logprobs, field)]
        assert joined == getattr(whole.logprobs, field)
    assert same([p for c in choices for p in c.logprobs.token_logprobs], whole.logprobs.token_logprobs)


@pytest.mark.slow
def test_a_chat_has_the_bytes_of_each_token(door, model):
    params = SamplingParams(40, temperature=20.0, seed=3, logprobs=2)
    (expected,) = InferenceEngine(model, device="cpu").generate([model.chat_prompt(TALK)], params)
    ask = {"messages": TALK, "logprobs": True, "top_logprobs": 2, **WILD}
    choice = door.client.chat.completions.create(**ask).choices[0]
    content = choice.logprobs.content
    raw = b"".join(bytes(each.bytes) for each in content)
    assert raw.decode(errors="replace") == choice.message.content == expected.text
    assert [bytes(each.bytes).decode() for each in content if "\\x" not in each.token] == [
        each.token for each in content if "\\x" not in each.token
    ]
    assert same([each.logprob for each in content], [each.logprob for each in expected.logprobs])
    for each, known in zip(content, expected.logprobs, strict=True):
        assert same([top.logprob for top in each.top_logprobs], [value for _, value in known.top])
    first, *pieces = door.client.chat.completions.create(stream=True, **ask)
    assert first.choices[0].logprobs is None
    streamed = [each for piece in pieces for each in piece.choices[0].logprobs.content]
    assert [(each.token, each.bytes) for each in streamed] == [(each.token, each.bytes) for each in content]
    (bare,) = door.client.chat.completions.create(**ask | {"top_logprobs": 0, "max_tokens": 1}).choices
    assert [each.top_logprobs for each in bare.logprobs.content] == [[]]


@pytest.mark.slow
def test_who_does_not_ask_gets_none(door):
    assert door.client.completions.create(prompt=PROMPT, **WILD).choices[0].logprobs is None
    assert door.client.chat.completions.create(messages=TALK, **WILD).choices[0].logprobs is None
    stream = door.client.completions.create(prompt=PROMPT, stream=True, **WILD)
    assert {piece.choices[0].logprobs for piece in stream} == {None}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": TALK, "logprobs": 1}, "logprobs"),
        ({"messages": TALK, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": TALK, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"prompt": PROMPT, "logprobs": 6}, "logprobs"),
        ({"prompt": PROMPT, "logprobs": True}, "logprobs"),
        ({"prompt": PROMPT, "logprobs": -1}, "logprobs"),
        ({"prompt": PROMPT, "extra_body": {"top_logprobs": 1}}, "top_logprobs"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_its_name(door, body, field):
    answers = door.client.chat.completions if "messages" in body else door.client.completions
    with pytest.raises(openai.BadRequestError) as refused:
        answers.create(**WILD, **body)
    assert refused.value.param == field


def test_what_json_cannot_say_is_very_unlikely(tiny):
    assert (number(-math.inf), number(-1.5)) == (VERY_UNLIKELY, -1.5)
    assert Spelling(tiny.tokenizer).text_of(tiny.tokenizer.encode("é")[0], True, "bytes:") == "bytes:\\xc3"


def test_from_the_engines_process_they_come_as_they_were(expected):
    made = Made()
    made.add(7, (expected.token_ids, expected))
    numbers, sent, _ = json.loads(encoded(made.take()))
    read = tuple(map(token_of, sent))
    assert numbers == [7] * 40 and not made
    assert (read, logprobs_of(read)) == (expected.token_ids, expected.logprobs)
