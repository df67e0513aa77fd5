"""Replies in OpenAI's own types: whole ones, and the frames of a stream."""

import json
import time
import uuid
from asyncio import to_thread
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from openai.types import Completion as TextReply
from openai.types import CompletionChoice, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice as ChatChoice
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from pydantic import BaseModel

from labkit.engine import Completion
from labkit.engine.sampling import logprobs_of
from labkit.engine.streaming import AsyncTokenStream
from labkit.serve.errors import ApiError
from labkit.serve.logprobs import ChatLogprobs, Spelling, TextLogprobs

TEXT = "\0"  # where a frame's text goes; JSON writes it as an escape that no other field has
LOGPROBS = "\1"  # where its log probabilities go
USAGE = "\2"  # where the number of its answer's tokens so far goes
NO_CHOICES = '"choices":[]'
DONE = b"data: [DONE]\n\n"


def finish_reason(completion: Completion) -> Literal["stop", "length"]:
    """Why an answer ended. Raises ApiError if it ended by an error: that is never told as a normal end."""
    match str(completion.finish_reason):
        case "stop":
            return "stop"
        case "length":
            return "length"
    raise ApiError(500, completion.error or "the request was cancelled")


def usage_of(completions: Sequence[Completion], n: int) -> CompletionUsage:
    """The tokens of all answers, and of each prompt once. n: answers to each prompt."""
    prompts = sum(len(completion.prompt_token_ids) for completion in completions[::n])
    made = sum(len(completion.token_ids) for completion in completions)
    return counted_usage(prompts, made)


def counted_usage(prompt: int, made: int) -> CompletionUsage:
    """So many tokens of prompts, and so many made."""
    return CompletionUsage(prompt_tokens=prompt, completion_tokens=made, total_tokens=prompt + made)


class TextForm:
    """How /v1/completions answers one request.

    model: the name that the client knows the model by. spelling: of its tokens, if the client asks for log
    probabilities; else None. counted: the answers' streams, if each frame is to count their tokens.
    """

    prefix = "cmpl"
    whole_type: tuple[type[BaseModel], str] = TextReply, "text_completion"
    frame_type = whole_type
    logprobs_of = TextLogprobs
    counted: Sequence[AsyncTokenStream] = ()

    def __init__(self, model: str, spelling: Spelling | None = None) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.model = model
        self.spelling = spelling
        self.created = int(time.time())

    async def whole(self, completions: Sequence[Completion], n: int) -> str:
        """The JSON of the reply with all answers. Raises ApiError if one of them ended by an error.

        Many log probabilities take seconds, so those of each answer are written in a thread, and others are
        served meanwhile.
        """
        choices = []
        for about in enumerate(completions):
            choices.append(await to_thread(self._choice, *about) if self.spelling else self._choice(*about))
        reply = self._reply(self.whole_type, [], usage_of(completions, n)).model_dump_json(exclude_unset=True)
        before, _, after = reply.partition(NO_CHOICES)
        return f"{before}{NO_CHOICES[:-1]}{','.join(choices)}]{after}"

    def _choice(self, index: int, done: Completion) -> str:
        """The JSON of one answer."""
        entries = self._logprobs()
        logprobs = entries and entries.of(done.logprobs)
        about = {"index": index, "finish_reason": finish_reason(done), "logprobs": logprobs}
        return self.choice(done.text, about).model_dump_json(exclude_unset=True)

    def choice(self, text: str, about: dict[str, Any]) -> BaseModel:
        """A whole answer. about: its index, finish reason and log probabilities."""
        return CompletionChoice(text=text, **about)

    def _logprobs(self) -> TextLogprobs | None:
        return self.logprobs_of(self.spelling) if self.spelling else None

    def opening(self, index: int) -> bytes:
        """What comes before an answer's first frame."""
        return b""

    def frames(self, index: int) -> "Frames":
        stream = self.counted[index] if self.counted else None
        return Frames(self._body([self._blank_choice(index)]), self._logprobs(), stream)

    def usage_frame(self, completions: Sequence[Completion], n: int) -> bytes:
        """The last frame of a stream whose client asked for usage: no choices, and all tokens counted."""
        return frame(self._body([], usage_of(completions, n).model_dump()))

    def _body(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        own = {"id": self.id, "created": self.created, "choices": choices, "usage": usage}
        return self._blank | own

    def _blank_choice(self, index: int) -> dict[str, Any]:
        """The choice of a frame, with TEXT where its text goes."""
        return self._blank["choices"][0] | {"index": index}

    @property
    def _blank(self) -> dict[str, Any]:
        return blank_body(type(self), self.model)  # type: ignore[arg-type]  # a class can be hashed

    def blank(self) -> BaseModel:
        """A frame in OpenAI's type, with TEXT where its text goes."""
        # The type says that every frame has a reason; on the wire it is null until the last.
        choice = CompletionChoice.model_construct(index=0, text=TEXT, finish_reason=None, logprobs=None)
        return self._reply(self.frame_type, [choice], None)

    def _reply(
        self, kind: tuple[type[BaseModel], str], choices: list, usage: CompletionUsage | None
    ) -> BaseModel:
        about: dict[str, Any] = {"id": self.id, "object": kind[1], "model": self.model}
        return kind[0].model_construct(**about, created=self.created, choices=choices, usage=usage)


class ChatForm(TextForm):
    """How /v1/chat/completions answers one request."""

    prefix = "chatcmpl"
    whole_type = ChatCompletion, "chat.completion"
    frame_type = ChatCompletionChunk, "chat.completion.chunk"
    logprobs_of = ChatLogprobs

    def choice(self, text: str, about: dict[str, Any]) -> BaseModel:
        message = ChatCompletionMessage(role="assistant", content=text, refusal=None)
        return ChatChoice(message=message, **about)

    def opening(self, index: int) -> bytes:
        """A frame that says who speaks."""
        choice = self._blank_choice(index)
        delta = choice["delta"] | {"role": "assistant", "content": ""}
        usage = counted_usage(self.counted[index].num_prompt_tokens, 0).model_dump() if self.counted else None
        return frame(self._body([choice | {"delta": delta}], usage))

    def blank(self) -> BaseModel:
        choice = ChunkChoice(index=0, delta=ChoiceDelta(content=TEXT), finish_reason=None, logprobs=None)
        return self._reply(self.frame_type, [choice], None)


@lru_cache(64)
def blank_body(form: type[TextForm], model: str) -> dict[str, Any]:
    """A frame's body as OpenAI's type has it, kept for all requests: making one takes longer than a token.

    Without the fields that nobody set: some clients go through a delta's `tool_calls` even if they are null.
    """
    return form(model).blank().model_dump(mode="json", exclude_unset=True)


class Frames:
    """The frames of one answer in a stream: JSON is made once, with each text put in its place."""

    def __init__(
        self,
        body: dict[str, Any],
        logprobs: TextLogprobs | None = None,
        counted: AsyncTokenStream | None = None,
    ) -> None:
        """body: with TEXT where each frame's text goes, and no finish reason; it is changed. logprobs: of the
        answer; counted: its stream, whose tokens each frame counts; None if nobody asks for them."""
        self._logprobs, self._counted = logprobs, counted
        self._tokens, self._num_made = list[int](), 0  # those that no frame has had; all
        if logprobs is not None:
            body["choices"][0]["logprobs"] = LOGPROBS
        if counted is not None:
            body["usage"] = USAGE
        self._before, self._after = json.dumps(body).split(json.dumps(TEXT))
        body["choices"][0]["finish_reason"] = TEXT + TEXT
        self._last = json.dumps(body)

    def text(self, text: str, token_ids: Sequence[int]) -> bytes:
        """A frame with more of the answer, and the tokens that it is made of; none without text."""
        if self._logprobs is None and self._counted is None:
            return f"data: {self._before}{json.dumps(text)}{self._after}\n\n".encode() if text else b""
        self._tokens += token_ids
        return self._filled(self._before, text, self._after) if text else b""

    def end(self, text: str, token_ids: Sequence[int], reason: str) -> bytes:
        """The last frame, with what is left of the text."""
        body = self._last.replace(json.dumps(TEXT + TEXT), json.dumps(reason))
        before, after = body.split(json.dumps(TEXT))
        self._tokens += token_ids
        return self._filled(before, text, after)

    def _filled(self, before: str, text: str, after: str) -> bytes:
        """A frame, with the log probabilities of the tokens that have come, and their number."""
        tokens, self._tokens = self._tokens, []
        self._num_made += len(tokens)
        if self._counted is not None:
            usage = counted_usage(self._counted.num_prompt_tokens, self._num_made).model_dump_json()
            after = after.replace(json.dumps(USAGE), usage)
        if self._logprobs is not None:
            entries = json.dumps(self._logprobs.of(logprobs_of(tokens)).model_dump(mode="json"))
            before, after = (part.replace(json.dumps(LOGPROBS), entries) for part in (before, after))
        return f"data: {before}{json.dumps(text)}{after}\n\n".encode()


def frame(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(body)}\n\n".encode()
