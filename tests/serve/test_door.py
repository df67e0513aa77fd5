"""What the server refuses, and what it says of itself."""

import asyncio
import json
import re
import signal
import socket
import threading
from contextlib import ExitStack
from itertools import count
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import openai
import pytest
from helpers import failing, make_engine
from http_server import NAME, serving
from streaming_helpers import wait_for

from labkit.engine import StreamingServer
from labkit.engine.overlap import Batch
from labkit.errors import OptionError
from labkit.serve import engine_client, http
from labkit.serve.__main__ import is_loopback, main, make_parser
from labkit.serve.errors import ApiError
from labkit.serve.replies import LOGPROBS, TEXT, Frames
from labkit.serve.requests import read_chat
from labkit.serve.running import RunningServer

GOOD = {"model": NAME, "prompt": [1, 2], "max_tokens": 2, "temperature": 0}
REFUSED = {  # what a client sends, to which status and which field
    "a token that is no number": (GOOD | {"prompt": [1, True]}, 400, "prompt"),
    "a token of another vocabulary": (GOOD | {"prompt": [256]}, 400, None),
    "no token": (GOOD | {"prompt": []}, 400, "prompt"),
    "another model": (GOOD | {"model": "gpt-4"}, 404, "model"),
    "no model": ({"prompt": "a"}, 400, "model"),
    "more prompts than answers may be": (GOOD | {"prompt": [[1]] * 129}, 400, "prompt"),
    "no tokens": (GOOD | {"max_tokens": 0}, 400, "max_tokens"),
    "no tokens by the other name": (
        {"model": NAME, "prompt": "a", "max_completion_tokens": 0},
        400,
        "max_completion_tokens",
    ),
    "a limit of no number": (
        {"model": NAME, "prompt": "a", "max_completion_tokens": [1]},
        400,
        "max_completion_tokens",
    ),
    "two limits": (GOOD | {"max_completion_tokens": 5}, 400, "max_tokens"),
    "a wrong temperature": (GOOD | {"temperature": -1}, 400, "temperature"),
    "a seed that is no number": (GOOD | {"seed": "x"}, 400, "seed"),
    "answers without number": (GOOD | {"n": 0}, 400, "n"),
    "too many answers": (GOOD | {"n": 129}, 400, "n"),
    "a penalty": (GOOD | {"presence_penalty": 0.5}, 400, "presence_penalty"),
    "at least so many tokens": (GOOD | {"min_tokens": 2}, 400, "min_tokens"),
    "more than its limit": (GOOD | {"min_tokens": 3, "max_tokens": 2, "ignore_eos": True}, 400, "min_tokens"),
    "messages": (GOOD | {"messages": [{"role": "user", "content": "a"}]}, 400, "messages"),
    "a parameter of nobody": (GOOD | {"colour": "red"}, 400, "colour"),
    "a stream of a number": (GOOD | {"stream": 1}, 400, "stream"),
    "a seed of more than 64 bits": (GOOD | {"seed": 2**63}, 400, "seed"),
    "too many stop strings": (GOOD | {"stop": ["a"] * 33}, 400, "stop"),
    "a stop string of a page": (GOOD | {"stop": ["a", "b" * 1001]}, 400, "stop"),
    "entries without number": (GOOD | {"logit_bias": dict.fromkeys(range(1025), 0)}, 400, "logit_bias"),
    "an end ignored by text": (GOOD | {"ignore_eos": "no"}, 400, "ignore_eos"),
    "half a character as a name": (GOOD | {"\ud800": 1}, 400, "\\ud800"),
    "half a character as a token": (GOOD | {"logit_bias": {"\ud800": "x"}}, 400, "logit_bias"),
    "an option of nobody": (GOOD | {"stream": True, "stream_options": {"red": True}}, 400, "stream_options"),
    "options of no stream": (GOOD | {"stream_options": {"include_usage": True}}, 400, "stream_options"),
}


@pytest.fixture(scope="module")
def door():
    with serving(make_engine(max_blocks_per_layer=256), max_inflight_requests=4) as door:
        yield door


def post(door, body, path="/v1/completions", **options):
    content = body if isinstance(body, bytes | str) else json.dumps(body)
    return httpx.post(door.url + path, content=content, timeout=60, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("body", "status", "field"), REFUSED.values(), ids=REFUSED)
def test_a_request_is_refused_with_its_reason(door, body, status, field):
    reply = post(door, body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (status, field) and error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.slow
@pytest.mark.parametrize("longer", [{"max_tokens": 63}, {"prompt": "word " * 200_000}, {"max_tokens": 20}])
def test_what_can_never_fit_has_the_code_and_the_words_that_clients_know(longer):
    """Neither in the positions nor in the pool, which here has room for 16 tokens."""
    with serving(make_engine(max_blocks_per_layer=4)) as door:
        reply = post(door, GOOD | longer)
        told = reply.json()["error"]
        assert (reply.status_code, told["code"]) == (400, "context_length_exceeded")
        assert told["param"] is None and "max_new_tokens" not in told["message"]
        assert "this model's maximum context length is" in told["message"]
        assert door.client.models.retrieve(NAME).max_model_len == 17  # the last one is never stored
        assert post(door, GOOD | {"max_tokens": 15}).status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"\xff", b'"a"', b"[" * 100_000, b'{"model":1,"model":2}']
)
def test_a_body_that_is_no_object_is_refused(door, body):
    reply = post(door, body)
    assert reply.status_code == 400 and reply.json()["error"]["message"]


def test_a_body_is_read_up_to_a_limit(door):
    assert post(door, b" " * (9 << 20)).status_code == 413


def test_what_asks_for_nothing_is_no_reason_to_refuse(door):
    quiet = {"presence_penalty": 0, "echo": False, "best_of": 1, "user": "me", "stop": None, "logit_bias": {}}
    quiet |= {"top_k": -1, "ignore_eos": True, "stream_options": {}}
    quiet |= {"no_stop_trim": False, "skip_special_tokens": True, "include_reasoning": True}  # of a router
    quiet |= {
        "repetition_penalty": 1.0,
        "max_tokens": 2,
        "min_tokens": 2,
        "stop_token_ids": [],
    }  # of load generators
    assert post(door, GOOD | quiet).status_code == 200


def test_half_a_request_and_no_route_hurt_nobody(door):
    with socket.create_connection(door.server.servers[0].sockets[0].getsockname()) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
    wait_for(lambda: 'status="499"' in httpx.get(f"{door.url}/metrics").text)  # and it is no error of ours
    assert 'status="500"' not in httpx.get(f"{door.url}/metrics").text
    for path in ("/v1/nothing", "/v1/completions/"):  # the second is sent nowhere else
        assert post(door, GOOD, path).json()["error"]["message"].startswith(f"POST {path}")
    wrong = httpx.get(f"{door.url}/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert post(door, GOOD).status_code == 200


def test_half_a_body_that_stops_is_not_waited_for(door, monkeypatch):
    monkeypatch.setattr(http, "SECONDS_TO_SEND", 0.05)
    with socket.create_connection(door.server.servers[0].sockets[0].getsockname()) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        assert half.recv(1000).startswith(b"HTTP/1.1 408 ")
    assert post(door, GOOD).status_code == 200


def test_a_request_that_cannot_be_sent_to_the_engine_ends_and_holds_no_place(door, monkeypatch):
    def fails(*_):
        raise ValueError("planted")

    long = GOOD | {"prompt": "a" * (engine_client.LONG_TEXT + 1)}
    with monkeypatch.context() as patched:
        patched.setattr(engine_client, "encoded", fails)
        assert post(door, GOOD).status_code == 500 and door.streaming.num_unfinished == 0
        assert post(door, long).status_code == 400
        patched.setattr(door.streaming._pool, "submit", fails)  # no thread can be started
        assert post(door, long).status_code == 500 and door.streaming.num_unfinished == 0
    assert post(door, GOOD).status_code == 200


def test_a_stream_that_a_failed_step_cuts_short_is_told_so_and_counted(door, monkeypatch):
    monkeypatch.setattr(door.engine, "step", failing(door.engine.step, 20, RuntimeError("planted")))
    with pytest.raises(openai.APIError, match="planted"):
        list(door.client.completions.create(stream=True, **GOOD | {"max_tokens": 60}))
    assert 'refused_requests_total{status="503"} 1.0' in httpx.get(f"{door.url}/metrics").text
    assert post(door, GOOD).status_code == 200


def broken_from(door, monkeypatch, num_tokens: int) -> None:
    """From its token of that number on, logits are no numbers."""
    accept, calls = door.engine.delivery.accept, count(1)
    monkeypatch.setattr(Batch, "take", lambda *_: False)  # each token comes by way of `accept`
    monkeypatch.setattr(
        door.engine.delivery,
        "accept",
        lambda requests, ids: accept(requests, ids if next(calls) < num_tokens else [None] * len(ids)),
    )


def test_a_stream_that_ends_by_logits_that_are_no_numbers_has_all_tokens_before(door, monkeypatch):
    """Those too that no frame has had yet; and its status, if there are none."""
    ask, on = GOOD | {"max_tokens": 40}, {"ignore_eos": True}
    expected = post(door, ask | on | {"max_tokens": 19}).json()["choices"][0]["text"]
    monkeypatch.setattr(door.streaming.host, "_every", 10.0)
    with monkeypatch.context() as patched:
        broken_from(door, patched, 20)
        texts = []
        with pytest.raises(openai.APIError, match="finite"):
            for piece in door.client.completions.create(stream=True, extra_body=on, **ask):
                texts.append(piece.choices[0].text)
    assert "".join(texts) == expected
    with monkeypatch.context() as patched:
        broken_from(door, patched, 1)
        assert post(door, ask | on | {"stream": True}).status_code == 500
    assert post(door, GOOD).status_code == 200


def test_log_probabilities_go_to_their_place_whatever_the_text_is():
    scores = SimpleNamespace(of=lambda tokens: SimpleNamespace(model_dump=lambda mode: {"tokens": 1}))
    choice = {"index": 0, "text": TEXT, "finish_reason": None, "logprobs": None}
    frames = Frames({"choices": [dict(choice)]}, scores)
    made = [frames.text(LOGPROBS, [1]), frames.end(TEXT + LOGPROBS, [1], "stop")]
    read = [json.loads(each.removeprefix(b"data: "))["choices"][0] for each in made]
    assert read[0] == choice | {"text": LOGPROBS, "logprobs": {"tokens": 1}}
    assert read[1] == choice | {
        "text": TEXT + LOGPROBS,
        "finish_reason": "stop",
        "logprobs": {"tokens": 1},
    }


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ({"content": "a"}, 51),
        ({"content": [{"type": "image_url", "text": ""}]}, 1),
        ({"role": "function", "name": "f", "content": "42"}, 1),
        ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, 1),
    ],
    ids=["more than tokens", "a picture", "of a function", "a call of it"],
)
def test_messages_that_cannot_be_read_are_refused_before_they_are_written(message, count):
    messages = [{"role": "user"} | message] * count
    with pytest.raises(ApiError) as refused:
        read_chat({"model": NAME, "messages": messages}, lambda *_: pytest.fail("written"), longest=50)
    assert (refused.value.status, refused.value.param) == (400, "messages")


FLAGS = ["--drain inf", "--drain -1", "--port 70000", "--max-requests 0", "--frame-every nan"]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_out_of_range_is_refused_before_a_model_is_loaded(flag, capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--model", "m", *flag.split()])
    name, value = flag.split()
    said = capsys.readouterr().err
    assert f"argument {name}" in said and value in said


def test_ctrl_c_while_a_model_is_loaded_ends_the_command_quietly(monkeypatch):
    monkeypatch.setattr("sys.argv", ["serve", "--model", "m"])
    monkeypatch.setattr("labkit.serve.__main__.engine_server", Mock(side_effect=KeyboardInterrupt))
    main()


def test_a_port_in_use_is_noticed_before_a_model_is_loaded(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as holds:
        port = holds.getsockname()[1]
        monkeypatch.setattr("sys.argv", ["serve", "--model", "m", "--port", f"{port}"])
        monkeypatch.setattr(
            "labkit.serve.__main__.engine_server", lambda *_: pytest.fail("a model is loaded")
        )
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code and "address already in use" in capsys.readouterr().err.lower()


def test_a_model_without_a_template_says_so(door):
    with pytest.raises(openai.BadRequestError, match="chat template"):
        door.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "hi"}])


def test_a_full_server_asks_to_come_back_and_who_never_fits_is_told_so(door, monkeypatch):
    step, go_on = door.engine.step, threading.Event()
    calls = count()
    monkeypatch.setattr(door.engine, "step", lambda: (next(calls) < 20 or go_on.wait()) and step())
    stream = door.client.completions.create(stream=True, **GOOD | {"max_tokens": 60, "n": 3})
    try:
        with pytest.raises(openai.RateLimitError) as refused:
            door.client.completions.create(model=NAME, prompt=[[1]] * 2, max_tokens=2)
        assert int(refused.value.response.headers["retry-after"]) > 0
        with pytest.raises(openai.BadRequestError, match="5 answers are asked for"):
            door.client.completions.create(model=NAME, prompt=[[1]] * 5, max_tokens=2)
        assert door.streaming.num_unfinished == 3
    finally:
        go_on.set()
        assert len(list(stream)) > 3
    wait_for(lambda: not door.streaming.num_unfinished)
    assert door.client.completions.create(model=NAME, prompt=[[1]] * 4, max_tokens=2).usage.prompt_tokens == 4


@pytest.mark.slow
def test_metrics_count_what_was_served(door):
    def read(name):
        found = re.search(rf"^labkit_{name} (\S+)$", httpx.get(f"{door.url}/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    names = (
        "generated_tokens_total",
        'requests_total{finish_reason="length"}',
        "time_to_first_token_seconds_count",
    )
    before = [read(re.escape(name)) for name in names]
    door.client.completions.create(model=NAME, prompt=[[1], [2]], max_tokens=3)
    assert [read(re.escape(name)) - b for name, b in zip(names, before, strict=True)] == [6, 2, 2]
    assert read("kv_blocks") == 256 and read("running_requests") == 0
    assert httpx.get(f"{door.url}/health").json() == {"status": "ok"}
    assert "<title>labkit</title>" in httpx.get(door.url).text


@pytest.mark.parametrize("key", ["", "secret ", "a\nb", "\udcff"])
def test_a_key_or_a_name_that_no_client_can_send_is_refused(monkeypatch, key):
    with StreamingServer(make_engine()) as server:
        with pytest.raises(OptionError, match="the model's name"):
            http.app_over(server, "a\0b")
        monkeypatch.setenv("LABKIT_API_KEY", key)
        with pytest.raises(OptionError, match=r"^LABKIT_API_KEY is set to a key that"):
            http.app_over(server)  # and it is not shown


def test_what_cannot_be_served_leaves_the_engine_to_others():
    engine = make_engine()
    for name in ("a\0b", 5, ["x"]):
        with pytest.raises(OptionError, match="the model's name for clients must be printable text") as kept:
            http.make_app(engine, name=name)
        assert kept and engine.generate([[1, 2]])
    with StreamingServer(engine) as server:
        app = http.app_over(server)
        for drain in ("x", -1, float("nan"), None):
            with pytest.raises(OptionError, match="drain must be a number of seconds"):
                RunningServer(app, drain)
    for wrong in (app, None, 5):
        with pytest.raises(OptionError, match="app must be an application of make_app"):
            RunningServer(wrong)


def test_a_text_whose_client_has_left_is_not_tokenized(door, monkeypatch):
    client, asked, go_on = door.streaming, [], threading.Event()
    check_prompt = type(client.limits).check_prompt

    def waiting(limits, prompt, *args):
        asked.append(prompt[0])
        go_on.wait(10)
        return check_prompt(limits, prompt, *args)

    monkeypatch.setattr(type(client.limits), "check_prompt", waiting)
    for first in "abc":
        body = json.dumps(GOOD | {"prompt": first + " " * engine_client.LONG_TEXT})
        with socket.create_connection(door.server.servers[0].sockets[0].getsockname()) as leaving:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            leaving.sendall(f"{head}{body}".encode())
            wait_for(lambda: client.num_unfinished == 1 and asked)
        wait_for(lambda: client.num_unfinished == 0)
    go_on.set()
    assert post(door, GOOD | {"prompt": "d" * (engine_client.LONG_TEXT + 1)}).status_code == 400
    assert asked == ["a", "d"]


def test_a_key_is_asked_for_where_there_is_one(monkeypatch):
    monkeypatch.setenv("LABKIT_API_KEY", "schlüssel")
    with serving(make_engine()) as door:
        given = {"Authorization": "Bearer schlüssel".encode()}
        assert httpx.get(f"{door.url}/v1/models", headers=given).status_code == 200
    monkeypatch.setenv("LABKIT_API_KEY", "secret")
    with serving(make_engine()) as door:
        with pytest.raises(openai.AuthenticationError, match="LABKIT_API_KEY"):
            door.client.models.list()
        assert [m.id for m in door.client.with_options(api_key="secret").models.list()] == [NAME]
        assert httpx.get(f"{door.url}/health").status_code == 200
        for given, status in {"bearer secret": 200, "secret": 401, "Bearer wrong": 401}.items():
            answer = httpx.get(f"{door.url}/v1/models", headers={"Authorization": given})
            assert answer.status_code == status, given


def test_at_shutdown_an_answer_has_time_to_end():
    with serving(make_engine(max_blocks_per_layer=256)) as door:
        stream = iter(door.client.completions.create(stream=True, **GOOD | {"max_tokens": 60}))
        next(stream)
        door.server.should_exit = True
        assert list(stream)[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize(("drain", "signals"), [(0, 1), (1000, 2)])
def test_an_answer_that_shutdown_cuts_short_is_told_so(monkeypatch, drain, signals):
    with serving(make_engine(max_blocks_per_layer=256), drain=drain) as door:
        step, close, closing, calls = door.engine.step, door.streaming.close, threading.Event(), count()
        monkeypatch.setattr(door.streaming, "close", lambda: (closing.set(), close()))
        # Steps enough for some text, for a token can be part of a character; then one until the time is over.
        monkeypatch.setattr(door.engine, "step", lambda: (next(calls) < 20 or closing.wait()) and step())
        stream = iter(door.client.completions.create(stream=True, **GOOD | {"max_tokens": 60}))
        next(stream)
        for _ in range(signals):
            door.server.handle_exit(signal.SIGINT, None)
        with pytest.raises(openai.APIError, match="closed"):
            list(stream)


def test_a_reader_that_reads_nothing_is_left_at_shutdown_and_its_requests_end():
    def send(message):
        asyncio.current_task().cancel()  # as uvicorn does, which prints what is raised then
        return asyncio.Future()

    at_end = ExitStack()
    at_end.callback(ended := Mock())
    asyncio.run(http.EventStream((), at_end)({}, None, send))
    ended.assert_called_once_with()


def test_addresses_that_others_reach_are_known():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"))
