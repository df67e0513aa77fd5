"""The routes of the server: OpenAI's endpoints, health, metrics and the page.

An event loop reads sockets and writes frames. Where the engine steps is the business of what serves: in a
thread of this process, or in a process of its own.
"""

import asyncio
import hmac
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from openai.types import Model
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from labkit.checks import shown
from labkit.engine import (
    AsyncTokenStream,
    Chunk,
    Completion,
    InferenceEngine,
    StreamingServer,
)
from labkit.errors import LabkitError, OptionError, OverloadedError
from labkit.garbage import uncollected
from labkit.json_file import parse_json
from labkit.serve.engine_client import EngineClient
from labkit.serve.errors import ApiError, api_error
from labkit.serve.logprobs import Spelling
from labkit.serve.metrics import Metrics
from labkit.serve.replies import DONE, ChatForm, TextForm, finish_reason, frame
from labkit.serve.requests import Asked, read_chat, read_completion

PAGE = Path(__file__).with_name("page.html")
LARGEST_BODY = 8 * 2**20  # bytes; no model's context is as long
LARGE_BODY = 2**16  # from here on it is parsed in a thread
SECONDS_TO_SEND = 5.0  # the next part of a body
API_KEY = "LABKIT_API_KEY"  # the environment variable
LEFT = "the client has left"


# What serves: an engine in a thread of this process, or one in another process.
Server = StreamingServer | EngineClient


def make_app(
    engine: InferenceEngine, *, name: str | None = None, max_inflight_requests: int = 1024
) -> Starlette:
    """An ASGI application that serves an engine of this process over OpenAI's API.

    engine: belongs to the application while that runs. name: of the model, for clients; the model's own
    without one. max_inflight_requests: unfinished answers at most; more are refused with 429, and
    with 400 a request that asks for more by itself.
    With the environment variable LABKIT_API_KEY set, /v1 asks for that key.
    Raises what `StreamingServer` does, and OptionError for a name or a key that cannot be sent.
    """
    api_key()  # a wrong one, or a wrong name, is told before the engine is taken
    checked_name(name or "")
    server = StreamingServer(engine, max_inflight_requests=max_inflight_requests, tokenize_workers=1)
    return app_over(server, name)


def app_over(server: Server, name: str | None = None) -> Starlette:
    """The application over what serves, which belongs to it while it runs, and is closed with it.

    name, and what is raised: as for `make_app`.
    """
    key = api_key()
    door = Door(server, checked_name(name or server.voice.name))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.close)

    keyed = partial(with_key, key)
    routes = [
        Route("/", door.page),
        Route("/health", door.health),
        Route("/metrics", door.show_metrics),
        Route("/v1/models", keyed(door.models)),
        Route("/v1/models/{model:path}", keyed(door.model)),
        Route("/v1/completions", keyed(door.complete), methods=["POST"]),
        Route("/v1/chat/completions", keyed(door.chat), methods=["POST"]),
    ]
    refusals = dict.fromkeys((LabkitError, 404, 405, Exception), door.refuse)
    app = Starlette(routes=routes, exception_handlers=refusals, lifespan=lifespan)
    app.router.redirect_slashes = False  # to where a client's Host header says
    app.state.server, app.state.door = server, door
    return app


def checked_name(name: object) -> str:
    """The name. Raises OptionError for one that cannot be printed."""
    if not isinstance(name, str) or not name.isprintable():
        raise OptionError(f"the model's name for clients must be printable text, not {shown(name)}")
    return name


def api_key() -> str | None:
    """The key that /v1 asks for, if one is set. Raises OptionError for one that no client can send."""
    key = os.environ.get(API_KEY)
    if key is None or (key and key.isprintable() and key == key.strip()):
        return key
    raise OptionError(f"{API_KEY} is set to a key that no client can send: set another, or unset it")


Endpoint = Callable[[Request], Awaitable[Response]]


def with_key(key: str | None, endpoint: Endpoint) -> Endpoint:
    """The endpoint, for those who send the key as a bearer token; for everybody if there is no key."""

    async def checked(request: Request) -> Response:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if key is not None and not (
            scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), key.encode())
        ):
            raise ApiError(401, f"the API key is wrong or missing: send {API_KEY}'s as a bearer token")
        return await endpoint(request)

    return checked


class Door:
    """What the routes share: what serves, the model's name, the metrics."""

    watch_points = ("admit", "frames", "leaving")

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.spelling = Spelling(server.voice.tokenizer)
        self.metrics = Metrics(server.stats)

    # --- about the server --------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """A page to try the model on, with the engine's state beside it."""
        return FileResponse(PAGE, media_type="text/html")

    async def health(self, request: Request) -> Response:
        """200 while requests are served; 503 when the engine is gone or broken, or the server closed."""
        if not self.server.is_serving:
            raise ApiError(503, "the engine has stopped")
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def models(self, request: Request) -> Response:
        """The one model that is served."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """The model of that name. 404 for another one."""
        self._check_name(request.path_params["model"])
        return JSONResponse(self._card())

    def _card(self) -> dict[str, Any]:
        """The model, with the tokens of its longest sequence."""
        card = Model(id=self.name, object="model", created=0, owned_by="labkit").model_dump()
        can_chat = self.server.voice.chat_template is not None
        # `vllm bench serve` asks for the root, by which it finds the tokenizer.
        own = {"root": self.server.voice.name, "max_model_len": self.server.limits.longest, "chat": can_chat}
        return card | own

    def _check_name(self, name: str) -> None:
        if name != self.name:
            raise ApiError(
                404, f"no model {shown(name)} here: this server has {self.name!r}", "model", "model_not_found"
            )

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Any error as OpenAI's clients expect it."""
        headers = getattr(error, "headers", None) or {}  # which methods there are, if this is none
        if status := getattr(error, "status_code", None):  # no such route, or no such method on it
            error = ApiError(status, f"{request.method} {request.url.path} is nothing that this server has")
        told = api_error(error)
        self._count_refused(told)
        return error_reply(told, headers)

    # --- answers -----------------------------------------------------------------------------------

    async def complete(self, request: Request) -> Response:
        """/v1/completions."""
        raw = await json_body(request)
        asked = read_completion(raw)
        self._check_name(raw["model"])
        return await self.answer(request, asked, TextForm)

    async def chat(self, request: Request) -> Response:
        """/v1/chat/completions."""
        raw = await json_body(request)
        # In a thread: a long conversation takes a while to write and to tokenize, and others are served.
        longest = self.server.limits.longest
        asked = await asyncio.to_thread(read_chat, raw, self.server.voice.chat_prompt, longest)
        self._check_name(raw["model"])
        return await self.answer(request, asked, ChatForm)

    async def answer(self, request: Request, asked: Asked, kind: type[TextForm]) -> Response:
        """Submit every answer, and reply with all of them or with a stream. If one can't be submitted, none
        is; if the client leaves, all are cancelled."""
        form = kind(self.name, None if asked.params.logprobs is None else self.spelling)
        self.admit(len(asked.choices))
        with ExitStack() as at_end:
            streams: list[AsyncTokenStream] = []
            at_end.callback(close_all, streams)
            for prompt, params in asked.choices:
                streams.append(self.server.submit_async(prompt, params))
            at_end.callback(asyncio.ensure_future(self.leaving(request.receive, streams)).cancel)
            pieces = merged(streams)
            form.counted = streams if asked.body.stream_options.continuous_usage_stats else ()
            if not asked.body.stream:
                completions = await self.collect(pieces, len(streams))
                whole = await form.whole(completions, asked.body.n)
                return Response(whole, media_type="application/json")
            # Whatever is wrong with a request is known with its first token, and still gets its status.
            if (first := await anext(pieces, None)) is None:
                raise ApiError(499, LEFT)
            if (completion := first[1].completion) is not None and not completion.token_ids:
                finish_reason(completion)
            return EventStream(self.frames(first, pieces, asked, form, len(streams)), at_end.pop_all())

    def admit(self, num_answers: int) -> None:
        """Raise OverloadedError, before anything of the request is begun, if so many more are too many now,
        and ApiError if they always are."""
        unfinished, limit = self.server.num_unfinished, self.server.max_inflight_requests
        if limit is not None and num_answers > limit:
            raise ApiError(
                400, f"{num_answers} answers are asked for; this server makes {limit} at most", "n"
            )
        if limit is not None and unfinished + num_answers > limit:
            raise OverloadedError(
                f"{unfinished} answers are unfinished, and with {num_answers} more there would be more than "
                f"{limit}: ask again when some have ended"
            )

    async def leaving(
        self, receive: Callable[[], Awaitable[Any]], streams: Sequence[AsyncTokenStream]
    ) -> None:
        """Wait until the client leaves, and then close its streams, which cancels their requests.

        receive: ASGI's, of a request whose body was read. The task is cancelled when the answer has ended.
        """
        while (await receive())["type"] != "http.disconnect":
            pass
        close_all(streams)

    async def collect(self, pieces: AsyncIterator[tuple[int, Chunk]], num_answers: int) -> list[Completion]:
        """The completions of all answers, by index. Raises ApiError, for nobody, if the client leaves."""
        ended: dict[int, Completion] = {}
        async for index, chunk in pieces:
            if chunk.completion is not None:
                ended[index] = chunk.completion
                self.metrics.observe(chunk.completion)
        if len(ended) < num_answers:
            raise ApiError(499, LEFT)
        return [ended[index] for index in range(num_answers)]

    async def frames(
        self,
        first: tuple[int, Chunk],
        pieces: AsyncIterator[tuple[int, Chunk]],
        asked: Asked,
        form: TextForm,
        num_answers: int,
    ) -> AsyncIterator[bytes]:
        """The frames of a stream. One that fails ends with an error frame, and never with [DONE]."""
        answers = [form.frames(index) for index in range(num_answers)]
        ended: dict[int, Completion] = {}
        try:
            if opening := b"".join(map(form.opening, range(num_answers))):
                yield opening
            async for index, (text, token_ids, completion) in chain(first, pieces):
                if completion is None:
                    if more := answers[index].text(text, token_ids):
                        yield more
                    continue
                ended[index] = completion
                self.metrics.observe(completion)
                if completion.error is not None and (more := answers[index].text(text, token_ids)):
                    yield more  # what it had until then
                yield answers[index].end(text, token_ids, finish_reason(completion))
            if len(ended) < num_answers:
                raise ApiError(499, LEFT)
            if asked.body.stream_options.include_usage:
                yield form.usage_frame([ended[index] for index in range(num_answers)], asked.body.n)
            yield DONE
        except Exception as error:
            told = api_error(error)
            self._count_refused(told)
            yield frame(told.body)

    def _count_refused(self, told: ApiError) -> None:
        self.metrics.refused.labels(str(told.status)).inc()


def error_reply(told: ApiError, headers: Mapping[str, str] = {}) -> Response:
    """An error with its status, and with headers besides its own."""
    return JSONResponse(told.body, told.status, {**told.headers, **headers})


class EventStream(StreamingResponse):
    """Server-sent events. at_end: what is to be done when all are sent, or no more can be.

    Starlette's own way to send would end the frames when the client leaves; here it is `Door.leaving` that
    closes the streams, and with them their frames end.
    """

    def __init__(self, frames: AsyncIterator[bytes], at_end: ExitStack) -> None:
        super().__init__(frames, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._at_end = at_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Cancelled by uvicorn alone, at shutdown: the client does not read what it is told.
        with self._at_end, suppress(asyncio.CancelledError):
            await self.stream_response(send)


def close_all(streams: Sequence[AsyncTokenStream]) -> None:
    """Cancel what is unfinished of the streams' requests."""
    for stream in streams:
        stream.close()


async def chain(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    yield first
    async for item in rest:
        yield item


async def caught_up(stream: AsyncTokenStream) -> AsyncIterator[Chunk]:
    """A stream's chunks, those that have come meanwhile in one: with many readers a frame takes longer than a
    step, and with a frame for every token they would fall behind further and further."""
    async for text, token_ids, completion in stream:
        while completion is None and (more := stream.take_waiting()) is not None:
            text, token_ids, completion = text + more.text, token_ids + more.token_ids, more.completion
        yield Chunk(text, token_ids, completion)


async def merged(streams: Sequence[AsyncTokenStream]) -> AsyncIterator[tuple[int, Chunk]]:
    """The chunks of all streams as they come, each with its stream's index. Raises what a stream raises."""
    if len(streams) == 1:
        async for chunk in caught_up(streams[0]):
            yield 0, chunk
        return
    queue: asyncio.Queue[tuple[int, Chunk] | None] = asyncio.Queue()

    async def forward(index: int, stream: AsyncTokenStream) -> None:
        async for chunk in caught_up(stream):
            queue.put_nowait((index, chunk))

    everything = asyncio.gather(*(forward(index, stream) for index, stream in enumerate(streams)))
    everything.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (item := await queue.get()) is not None:
            yield item
        everything.result()
    finally:
        everything.cancel()


async def json_body(request: Request) -> Any:
    """The body, parsed. Raises ApiError if it is none or too large, or if its sender has stopped."""
    body, parts = bytearray(), request.stream()
    try:
        while part := await asyncio.wait_for(anext(parts, b""), SECONDS_TO_SEND):
            body += part
            if len(body) > LARGEST_BODY:
                raise ApiError(413, f"the body has more than {LARGEST_BODY} bytes")
    except TimeoutError:
        raise ApiError(408, f"of the body nothing has come for {SECONDS_TO_SEND:g} seconds") from None
    except ClientDisconnect:
        raise ApiError(499, LEFT) from None
    try:
        if len(body) > LARGE_BODY:
            return await asyncio.to_thread(parsed, bytes(body))
        return parse_json("the body", bytes(body))
    except ValueError as error:
        raise ApiError(400, str(error)) from None


def parsed(body: bytes) -> Any:
    """A large body's JSON. Raises ValueError if it is none. Not on an event loop: it may have to wait."""
    with uncollected():  # collections among millions of small lists take longer than all else
        return parse_json("the body", body)
