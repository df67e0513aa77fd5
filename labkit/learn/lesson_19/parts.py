"""Lesson 19: a running server with the reader's parts in the place of the package's, and a chat with it."""

import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

import openai

from labkit.engine import CacheConfig, Completion, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.text_decoder import TextDecoder
from labkit.errors import CheckpointError
from labkit.learn.kept import is_written
from labkit.model import LanguageModel, load_model
from labkit.model.chat import ChatTemplate
from labkit.model.tokenizer import Tokenizer
from labkit.serve import RunningServer, make_app
from labkit.serve.errors import ApiError, api_error
from labkit.serve.replies import ChatForm, finish_reason, usage_of
from labkit.show.sliders import show_widget
from labkit.watch.replaced import replaced

NAME = "mine"  # of the served model, for clients
LIMIT = 16  # unfinished answers of a server, at most
# A model that was trained on no conversations goes on with the text that it is sent.
AS_IT_IS = ChatTemplate("{% for message in messages %}{{ message['content'] }}{% endfor %}", {})

Piece = tuple[str, Completion | None]
# What steps 2 to 5 write.
MakeStops = Callable[[Sequence[str]], Any]
Write = Callable[[AsyncIterator[Piece], "Reply"], AsyncIterator[bytes]]
Leaving = Callable[[Callable[[], Awaitable[Any]], Sequence[Any]], Awaitable[None]]
Admit = Callable[[int, int, int], int]


class Reply:
    """The bodies of one answer's frames, as OpenAI's types have them. include_usage: whether the client asked
    for the number of tokens at the end. told: the last error of which it was told."""

    def __init__(self, include_usage: bool = False, form: ChatForm | None = None) -> None:
        self.include_usage, self.told = include_usage, None
        form = form or ChatForm(NAME)
        self._head = {"id": form.id, "object": "chat.completion.chunk", "created": form.created}
        self._head["model"] = form.model

    def chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        """A part of the answer. delta: what is new, {"role": ...} or {"content": ...}."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self._head | {"choices": [choice], "usage": None}

    def usage(self, completion: Completion) -> dict[str, Any]:
        """The tokens of prompt and answer, counted; there is no choice in it."""
        return self._head | {"choices": [], "usage": usage_of([completion], 1).model_dump()}

    def reason(self, completion: Completion) -> str:
        """Why an answer ended, "stop" or "length". Raises an error for one that failed."""
        return finish_reason(completion)

    def error(self, error: BaseException) -> dict[str, Any]:
        """What went wrong, for the client."""
        self.told = error
        return api_error(error).body


class OwnDecoder:
    """Tokens to text, which goes through the reader's stop strings."""

    def __init__(self, tokenizer: Tokenizer, stops: Any) -> None:
        self._decoder, self._stops = TextDecoder(tokenizer), stops

    def push(self, token_ids: Sequence[int]) -> str:
        return self._stops.push(self._decoder.push(token_ids))

    def finish(self) -> str:
        return self._stops.push(self._decoder.finish()) + self._stops.finish()


class Server(AbstractContextManager["Server"]):
    """A server on a free port of this machine, over an engine in this process. Close it, or use it in a
    `with` block.

    stops, frames, leaving, admit: what steps 2 to 5 write; None: the package's. limit: unfinished answers at
    most. middleware: an ASGI middleware with its arguments, around all of it.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        stops: MakeStops | None = None,
        frames: Write | None = None,
        leaving: Leaving | None = None,
        admit: Admit | None = None,
        limit: int = LIMIT,
        middleware: tuple[Callable, dict[str, Any]] | None = None,
    ) -> None:
        self.engine = engine
        app = make_app(engine, name=NAME, max_inflight_requests=limit)
        self.door, self.streaming = app.state.door, app.state.server
        if middleware is not None:
            app.add_middleware(middleware[0], **middleware[1])
        places = (
            (stops, self.streaming, "decoder", self._decoding),
            (frames, self.door, "frames", self._framing),
            (leaving, self.door, "leaving", lambda part, _: part),
            (admit, self.door, "admit", partial(self._admitting, limit)),
        )
        with ExitStack() as stack:
            for part, owner, name, wrapper in places:
                if part is not None:
                    stack.enter_context(replaced(owner, name, partial(wrapper, part)))
            self._running = RunningServer(app, drain=0)
            self._parts = stack.pop_all()
        self.url = self._running.url
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def ask(self, text: str, max_tokens: int, **options: Any) -> Any:
        """A request of the `openai` client for a greedy answer of so many tokens, with its other options."""
        return self.client.chat.completions.create(**asked(text, max_tokens), **options)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as a socket takes them."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def wait_until_idle(self) -> None:
        """Return when no request is left, be it that all were answered or that they were cancelled."""
        while self.streaming.num_unfinished:
            time.sleep(0.005)

    def close(self) -> None:
        """End all connections, and the engine's thread."""
        self.client.close()
        self.streaming.close()
        self._running.close()
        self._parts.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what stands in the place of the package's -----------------------------------------------------

    def _decoding(self, stops: MakeStops, inner: Callable) -> Callable:
        tokenizer = self.engine.model.tokenizer

        def decoder(params: SamplingParams) -> OwnDecoder | TextDecoder:
            return OwnDecoder(tokenizer, stops([*params.stop])) if params.stop else inner(params)

        return decoder

    def _framing(self, write: Write, inner: Callable) -> Callable:
        def frames(first: Any, pieces: Any, asked: Any, form: Any, num_answers: int) -> Any:
            if num_answers > 1 or not isinstance(form, ChatForm):
                return inner(first, pieces, asked, form, num_answers)
            return write(self._texts(first, pieces), Reply(asked.body.stream_options.include_usage, form))

        return frames

    async def _texts(self, first: Any, pieces: AsyncIterator[Any]) -> AsyncIterator[Piece]:
        """The chunks of a single answer, without their numbers and token ids."""
        yield first[1].text, first[1].completion
        async for _, (text, _, completion) in pieces:
            yield text, completion

    def _admitting(self, limit: int, admit: Admit, _: Callable) -> Callable:
        def decide(asked: int) -> None:
            unfinished = self.streaming.num_unfinished
            if (status := admit(unfinished, asked, limit)) != 200:
                raise ApiError(status, f"{unfinished} answers are unfinished, {asked} more were asked for")

        return decide


def written(**parts: Any) -> dict[str, Any]:
    """Those of the reader's parts in which no gap is left, and a line that says which they are."""
    done = {name: part for name, part in parts.items() if is_written(part)}
    others = [name for name in parts if name not in done]
    print(f"yours: {', '.join(done) or 'none yet'}; the package's: {', '.join(others) or 'none'}")
    return done


# --- requests and models ------------------------------------------------------------------------------


def asked(text: str, max_tokens: int) -> dict[str, Any]:
    """What the `openai` client's `create` takes for a greedy answer that ends at its limit."""
    messages = [{"role": "user", "content": text}]
    greedy = {"temperature": 0, "extra_body": {"ignore_eos": True}}
    return {"model": NAME, "messages": messages, "max_tokens": max_tokens, **greedy}


def own_engine(model: LanguageModel, max_batch_size: int = 8, **cache: Any) -> InferenceEngine:
    """The last rung's engine on a model, which goes on with texts as they are if it has no chat template."""
    if model.chat_template is None:
        model = replace(model, chat_template=AS_IT_IS)
    return InferenceEngine(
        model, cache=CacheConfig(**cache), scheduler=SchedulerConfig(max_batch_size=max_batch_size)
    )


def talking_model() -> LanguageModel:
    """The small chat model where it is installed; otherwise the shipped one, which goes on with a text."""
    try:
        return load_model("smollm2-135m")
    except CheckpointError:
        return load_model("data/tiny-gpt2")


def events(stream: bytes) -> Iterator[dict[str, Any] | str]:
    """The bodies in a stream of server-sent events; the text of one that is no JSON."""
    for event in stream.decode().split("\n\n")[:-1]:
        data = event.removeprefix("data: ")
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        yield body if isinstance(body, dict) else data


# --- a chat in the notebook -----------------------------------------------------------------------------

MOST_TOKENS = 120  # of an answer
WORDS = "A chat: run this cell in JupyterLab to talk to your server."


class Chat:
    """A line to write on, and above it what was said. Each answer streams from the server, in a thread of its
    own, so that the notebook goes on."""

    def __init__(self, server: Server, max_tokens: int = MOST_TOKENS) -> None:
        from ipywidgets import HTML, Text, VBox

        self._server, self._max_tokens = server, max_tokens
        self._messages: list[dict[str, str]] = []  # of this conversation, as the server is sent them
        self._told: list[str] = []  # all that was said, in HTML
        self.said = HTML()
        self.line = Text(
            placeholder="Write here, and press Enter", continuous_update=False, layout={"width": "30em"}
        )
        self.box = VBox([self.said, self.line])
        self.line.observe(lambda change: self.say(change["new"]), "value")  # Enter, or the line is left

    def say(self, text: str) -> threading.Thread | None:
        """Send a text after all that was said; the thread that waits for its answer."""
        if not text or self.line.disabled:
            return None
        self.line.disabled, self.line.value = True, ""
        self._messages.append({"role": "user", "content": text})
        self._told += [told("you", text), ""]
        thread = threading.Thread(target=self._answer, daemon=True)
        thread.start()
        return thread

    def _answer(self) -> None:
        """Draw the answer while it comes."""
        text = ""
        settings = {"max_tokens": self._max_tokens, "temperature": 0.7, "stream": True}
        try:
            create = self._server.client.chat.completions.create
            for chunk in create(model=NAME, messages=self._messages, **settings):
                if chunk.choices:
                    text += chunk.choices[0].delta.content or ""
                    self._draw(told("model", text))
            self._messages.append({"role": "assistant", "content": text})
        except Exception as error:  # whatever the server, or the way to it, says
            self._draw(
                told("model", f"{text} {type(error).__name__}: {error} What you write next begins anew.")
            )
            self._messages.clear()
        self.line.disabled = False

    def _draw(self, answer: str) -> None:
        self._told[-1] = answer
        self.said.value = f'<div style="max-width: 50em">{"".join(self._told)}</div>'


def told(who: str, text: str) -> str:
    """What somebody said, in HTML."""
    indent = f"margin-left: {0 if who == 'you' else 2}em"
    return f'<div style="white-space: pre-wrap; margin-top: 6px; {indent}"><b>{who}</b> {escape(text)}</div>'


def chat(server: Server) -> None:
    """Show a chat with a server. Where a page is only read, a line of words stands in its place."""
    show_widget(Chat(server).box, WORDS)
