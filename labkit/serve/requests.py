"""What a client asks for, checked: OpenAI's parameters, and those that vLLM adds to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from labkit.checks import is_whole, quoted, shown
from labkit.engine import SamplingParams
from labkit.errors import RequestError
from labkit.serve.errors import ApiError

MOST_CHOICES = 128  # of one request, as OpenAI has it
TOOL_ROLES = ("tool", "function")
# Stop strings of a request, and characters of one: each is looked for behind every token. OpenAI has 4.
MOST_STOPS, LONGEST_STOP = 32, 1000
MOST_ENTRIES = 1024  # of any other list or object: to check millions would hold up all streams


class StreamOptions(BaseModel, strict=True, extra="forbid"):
    """OpenAI's, and one of vLLM's."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class Body(BaseModel, strict=True):
    """How a request is to be answered. Of type Any is what others check: the door, `SamplingParams`, a chat
    template."""

    model: Any
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    max_completion_tokens: Any = None
    max_tokens: Any = None
    temperature: Any = 1.0  # OpenAI draws unless it is told not to
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Any = None
    ignore_eos: bool = False


class TextBody(Body):
    """A body of /v1/completions."""

    prompt: Any = None
    logprobs: int | None = Field(None, ge=0, le=5)


class ChatBody(Body):
    """A body of /v1/chat/completions."""

    messages: Any
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)


OPENAI: dict[type[Body], TypeAdapter] = {
    TextBody: TypeAdapter(completions.CompletionCreateParamsBase),
    ChatBody: TypeAdapter(chat.CompletionCreateParamsBase),
}
Known = TypeVar("Known", bound=Body)
SAMPLED = {"temperature", "top_p", "top_k", "min_p", "seed", "stop"}
# Whom it is for and how it is billed: nothing of the text depends on them.
ACCOUNT = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
ACCOUNT |= {"prompt_cache_retention", "parallel_tool_calls"}  # of no tools
# What this engine can't do, with the value that doesn't ask for it.
OFF: dict[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "tools": [],
    "tool_choice": "none",
    "functions": [],
    "function_call": "none",
    "reasoning_effort": "none",
    "verbosity": "medium",
    "chat_template_kwargs": {},
    "response_format": {"type": "text"},
    "modalities": ["text"],
    # vLLM's own, some of which its load generator and its clients always send.
    "repetition_penalty": 1,
    "length_penalty": 1,
    "min_tokens": 0,
    "stop_token_ids": [],
    "use_beam_search": False,
    "include_stop_str_in_output": False,
    "spaces_between_special_tokens": True,
    "add_generation_prompt": True,
    "priority": 0,
    # vllm-router and sglang-router put these into every request, and mean nothing by it.
    "no_stop_trim": False,
    "skip_special_tokens": True,
    "return_hidden_states": False,
    "continue_final_message": False,
    "separate_reasoning": True,
    "stream_reasoning": True,
    "include_reasoning": True,
}


@dataclass(frozen=True)
class Asked:
    """A request for completions: each prompt, a text or token ids, is answered `body.n` times."""

    body: Body
    prompts: Sequence[str | Sequence[int]]
    params: SamplingParams

    @property
    def choices(self) -> list[tuple[str | Sequence[int], SamplingParams]]:
        """Every answer's prompt and parameters, in the order of their indices. Answers to one prompt with a
        seed have seeds that follow each other: otherwise they would all be the same."""
        seed = self.params.seed
        return [
            (prompt, self.params if seed is None else replace(self.params, seed=seed + number))
            for prompt in self.prompts
            for number in range(self.body.n)
        ]


def read_completion(raw: object) -> Asked:
    """A body of /v1/completions. Raises ApiError, naming the field, for what is wrong or can't be done."""
    body = checked(TextBody, raw)
    return read_asked(body, prompts_of(body.prompt), 16, body.logprobs)


def read_chat(raw: object, to_prompt: Callable[[list, int], Sequence[int]], longest: int) -> Asked:
    """A body of /v1/chat/completions. to_prompt: the model's chat template, from messages, and how many
    tokens they may have, to token ids.

    longest: tokens of the longest request, to which an answer may grow without a limit of the client's.
    Raises ApiError, naming the field, for what is wrong or can't be done.
    """
    body = checked(ChatBody, raw, longest)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs are for logprobs = true", "top_logprobs")
    messages = body.messages
    prompt = to_prompt(list(map(with_text, messages)) if isinstance(messages, list) else messages, longest)
    num_top = body.top_logprobs if body.logprobs else None
    return read_asked(body, [prompt], max(1, longest - len(prompt)), num_top)


def with_text(message: Any) -> Any:
    """A message whose content, if it is in parts, is their text. Raises ApiError for a picture or a sound."""
    if not isinstance(message, dict):
        return message
    if message.get("tool_calls") or message.get("function_call") or message.get("role") in TOOL_ROLES:
        raise ApiError(400, "this server has no tools, and so no messages of tools", "messages")
    if message.get("role") == "developer":  # how newer models' clients say it
        message = message | {"role": "system"}
    if message.get("role") == "assistant" and message.get("content") is None:
        return message | {"content": ""}
    content = message.get("content")
    if not isinstance(content, list):
        return message  # the template says what is wrong with it, if anything is
    if not all(map(is_text, content)):
        raise ApiError(400, "this model reads text only: each part of a message must have one", "messages")
    return message | {"content": "".join(part["text"] for part in content)}


def is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)


def checked(kind: type[Known], raw: object, most_messages: int = 0) -> Known:
    """The body, its nulls left out, of OpenAI's types and with no field that would be lost."""
    if not isinstance(raw, dict):
        raise ApiError(400, f"the body must be a JSON object, not {type(raw).__name__}")
    given = {name: value for name, value in raw.items() if value is not None}
    if (foreign := "messages" if kind is TextBody else "prompt") in given:
        raise ApiError(400, f"{foreign} is for another endpoint", foreign, "unknown_parameter")
    check_sizes(given, most_messages)
    # What is in a list of token ids is for `prompts_of` to check: they may be many.
    seen = given | {"prompt": ""} if isinstance(given.get("prompt"), list) else given
    try:
        OPENAI[kind].validate_python(seen)
        body = kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = quoted(".".join(map(str, first["loc"])))
        raise ApiError(400, f"{where}: {first['msg']}", str(first["loc"][0])) from None
    for name, value in given.items():
        if name in kind.model_fields or name in ACCOUNT or (name in OFF and value == OFF[name]):
            continue
        if name == "min_tokens" and has_its_least_anyway(body, value):
            continue
        if name in OFF:
            off = f"leave it out, or send {OFF[name]!r}"
            raise ApiError(400, f"{name} = {shown(value)} is not supported by this server: {off}", name)
        raise ApiError(400, f"unknown parameter {shown(name)}", quoted(name), "unknown_parameter")
    return body


def has_its_least_anyway(body: Body, least: Any) -> bool:
    """Whether an answer of `least` tokens and more is asked for, and nothing ends one before its limit."""
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return body.ignore_eos and not body.stop and is_whole(least) and is_whole(most) and 0 <= least <= most


def check_sizes(given: dict[str, Any], most_messages: int) -> None:
    """Raises ApiError for a list or an object with more entries than any that is meant."""
    for name, value in given.items():
        if not isinstance(value, list | dict) or name == "prompt":
            continue
        most = {"messages": most_messages, "stop": MOST_STOPS}.get(name, MOST_ENTRIES)
        if len(value) > most:
            raise ApiError(400, f"{quoted(name)} has {len(value)} entries; {most} are the most", quoted(name))
    stop = given.get("stop", ())
    for text in [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else ():
        if isinstance(text, str) and len(text) > LONGEST_STOP:
            raise ApiError(400, f"a stop string has {LONGEST_STOP} characters at most", "stop")


def prompts_of(prompt: Any) -> list[str | Sequence[int]]:
    """A text, token ids, or a list of either, as a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if type(prompt[0]) is int and set(map(type, prompt)) == {int}:  # JSON has no other whole numbers
            return [prompt]
        if len(prompt) > MOST_CHOICES:  # before each is looked at
            raise ApiError(400, f"there are {len(prompt)} prompts; {MOST_CHOICES} are the most", "prompt")
        if all(isinstance(text, str) for text in prompt):
            return list(prompt)
        if all(isinstance(ids, list) and set(map(type, ids)) <= {int} for ids in prompt):
            return list(prompt)
    raise ApiError(400, "prompt must be a text, a list of token ids, or a list of either", "prompt")


def read_asked(
    body: Body, prompts: Sequence[str | Sequence[int]], default_max_tokens: int, num_top: int | None
) -> Asked:
    """The request, from a checked body and its prompts. num_top: how many of the likeliest tokens it asks for
    beside the log probability of each token; None if it asks for neither."""
    if body.n * len(prompts) > MOST_CHOICES:
        raise ApiError(
            400, f"n times the prompts is {body.n * len(prompts)}; {MOST_CHOICES} are the most", "n"
        )
    if body.stream_options.model_fields_set and not body.stream:
        raise ApiError(400, "stream_options are for stream = true", "stream_options")
    return Asked(body, prompts, read_params(body, default_max_tokens, num_top))


def read_params(body: Body, default_max_tokens: int, num_top: int | None) -> SamplingParams:
    """How the tokens are picked."""
    limits = body.model_dump(include={"max_completion_tokens", "max_tokens"}, exclude_none=True)
    if len(limits) > 1 and body.max_tokens != body.max_completion_tokens:
        message = "max_tokens and max_completion_tokens are two names of one number; send one of them"
        raise ApiError(400, message, "max_tokens")
    most_name, most = next(iter(limits.items()), ("max_tokens", default_max_tokens))
    chosen = body.model_dump(include=SAMPLED, exclude_none=True)
    if chosen.get("top_k") == -1:  # how vLLM says "off"
        chosen["top_k"] = 0
    try:
        return SamplingParams(most, stop_on_eos=not body.ignore_eos, logprobs=num_top, **chosen)
    except RequestError as error:
        message = str(error).replace("max_new_tokens", most_name)
        raise ApiError(400, message, message.split()[0]) from None
