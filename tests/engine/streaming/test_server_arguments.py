"""What a server refuses: its own arguments, prompts and parameters."""

import asyncio

import pytest
from bad_values import (
    BAD_PARAMS,
    BAD_PROMPTS,
    ENDLESS,
    JUNK,
    NO_SIZE,
    fresh,
    refused,
    refused_by_name,
    rows,
    without,
)
from helpers import GREEDY, make_engine, small_model
from streaming_helpers import labkit_threads

from labkit import InferenceEngine
from labkit.engine import StreamingServer
from labkit.errors import OptionError, RequestError

# --- prompts ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with StreamingServer(make_engine(), max_inflight_requests=3) as server:
        yield server
    assert labkit_threads() == []


async def submit_async(server, prompt):
    server.submit_async(prompt, GREEDY)


SUBMIT = {
    "submit": lambda server, prompt: server.submit(prompt, GREEDY),
    "submit_async": lambda server, prompt: asyncio.run(submit_async(server, prompt)),
}


@pytest.mark.parametrize("way", SUBMIT.values(), ids=SUBMIT)
@pytest.mark.parametrize("prompt", (BAD_PROMPTS | ENDLESS).values(), ids=BAD_PROMPTS | ENDLESS)
def test_a_server_refuses_the_same_and_gives_the_room_back(server, prompt, way):
    """Three requests may be unfinished: were a refused one kept, the fourth would be OverloadedError."""
    with refused(RequestError, "prompt|token id"):
        way(server, fresh(prompt))
    assert not server.engine.has_work


@pytest.mark.parametrize("params", BAD_PARAMS.values(), ids=BAD_PARAMS)
def test_a_server_refuses_params_of_another_kind(server, params):
    with refused(RequestError, "params must be SamplingParams"):
        server.submit([1], params)


@pytest.mark.parametrize("text", ["a" * 10**6, "", "a\ud800"])
def test_a_text_that_another_thread_encodes_is_refused_in_the_stream(text):
    with StreamingServer(make_engine(), tokenize_workers=1) as server:
        stream = server.submit(text, GREEDY)
        with refused(RequestError, "prompt"):
            next(stream)


# --- a server --------------------------------------------------------------------------------------

SERVER_ARGUMENTS = rows(
    engine=JUNK | {"None": None, "a model": small_model(), "the class": InferenceEngine},
    max_inflight_requests=NO_SIZE,
    stream_interval=NO_SIZE | {"None": None},
    tokenize_workers=without(NO_SIZE, "zero") | {"None": None},
)


@pytest.mark.parametrize(("name", "value"), SERVER_ARGUMENTS)
def test_an_argument_of_a_server_that_is_something_else_is_refused_by_name(name, value):
    threads = labkit_threads()
    with refused_by_name(OptionError, name):
        StreamingServer(**{"engine": make_engine()} | {name: value})
    assert labkit_threads() == threads
