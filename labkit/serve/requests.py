"""What a client asks for, checked: OpenAI's parameters, and those that vLLM adds to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat
from pydantic import TypeAdapter, ValidationError

from labkit.checks import is_whole, quoted, shown
from labkit.engine import SamplingParams
from labkit.errors import RequestError
from labkit.serve.errors import ApiError

MOST_CHOICES = 128  # of one request, as OpenAI has it
TOOL_ROLES = ("tool", "function")
MOST_LOGPROBS, MOST_TOP_LOGPROBS = 5, 20  # of a completion, and of a chat, as OpenAI has them
# Stop strings of a request, and characters of one: each is looked for behind every token. OpenAI has 4.
MOST_STOPS, LONGEST_STOP = 32, 1000
MOST_ENTRIES = 1024  # of any other list or object: to check millions would hold up all streams
SEEDS = range(-(2**63), 2**63)  # as OpenAI has it
STREAM_OPTIONS = {"include_usage", "continuous_usage_stats", "include_obfuscation"}  # the last one: off alone

SCHEMAS: dict[tuple[str, bool], TypeAdapter] = {  # by endpoint, and whether the reply is a stream
    ("completions", False): TypeAdapter(completions.CompletionCreateParamsNonStreaming),
    ("completions", True): TypeAdapter(completions.CompletionCreateParamsStreaming),
    ("chat", False): TypeAdapter(chat.CompletionCreateParamsNonStreaming),
    ("chat", True): TypeAdapter(chat.CompletionCreateParamsStreaming),
}
# How a request is to be answered; each is read below, but for "model", which the door checks.
READ = {"model", "prompt", "messages", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens"}
READ |= {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos"}
READ |= {"logprobs", "top_logprobs"}
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
    """A request for completions: each prompt is answered n times.

    prompts: texts or token ids. include_usage: a stream ends with a frame that counts its tokens.
    continuous_usage: each of its frames counts those so far.
    """

    prompts: Sequence[str | Sequence[int]]
    params: SamplingParams
    n: int = 1
    is_stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    @property
    def choices(self) -> list[tuple[str | Sequence[int], SamplingParams]]:
        """Every answer's prompt and parameters, in the order of their indices. Answers to one prompt with a
        seed have seeds that follow each other: otherwise they would all be the same."""
        seed = self.params.seed
        return [
            (prompt, self.params if seed is None else replace(self.params, seed=seed + number))
            for prompt in self.prompts
            for number in range(self.n)
        ]


def read_completion(raw: object) -> Asked:
    """A body of /v1/completions. Raises ApiError, naming the field, for what is wrong or can't be done."""
    given = checked("completions", raw)
    if "top_logprobs" in given:
        raise ApiError(400, "top_logprobs is for chat: here logprobs says how many", "top_logprobs")
    if not is_whole(num_top := given.get("logprobs", 0)) or not 0 <= num_top <= MOST_LOGPROBS:
        raise ApiError(400, f"logprobs must be a whole number from 0 to {MOST_LOGPROBS}", "logprobs")
    return read_asked(given, prompts_of(given.get("prompt")), default_max_tokens=16)


def read_chat(raw: object, to_prompt: Callable[[list, int], Sequence[int]], longest: int) -> Asked:
    """A body of /v1/chat/completions. to_prompt: the model's chat template, from messages, and how many
    tokens they may have, to token ids.

    longest: tokens of the longest request, to which an answer may grow without a limit of the client's.
    Raises ApiError, naming the field, for what is wrong or can't be done.
    """
    given = checked("chat", raw, longest)
    given |= {"logprobs": chat_logprobs(given)}
    messages = given["messages"]
    prompt = to_prompt(list(map(with_text, messages)) if isinstance(messages, list) else messages, longest)
    return read_asked(given, [prompt], default_max_tokens=max(1, longest - len(prompt)))


def chat_logprobs(given: dict[str, Any]) -> int | None:
    """How many of the likeliest tokens a chat asks for, beside the log probability of each token; or None."""
    asks, num_top = given.get("logprobs", False), given.get("top_logprobs", 0)
    if not isinstance(asks, bool):
        raise ApiError(400, f"logprobs must be true or false, not {shown(asks)}", "logprobs")
    if not is_whole(num_top) or not 0 <= num_top <= MOST_TOP_LOGPROBS:
        message = f"top_logprobs must be a whole number from 0 to {MOST_TOP_LOGPROBS}"
        raise ApiError(400, message, "top_logprobs")
    if num_top and not asks:
        raise ApiError(400, "top_logprobs are for logprobs = true", "top_logprobs")
    return num_top if asks else None


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


def checked(endpoint: str, raw: object, most_messages: int = 0) -> dict[str, Any]:
    """The body without its nulls, of OpenAI's types and with no field that would be lost."""
    if not isinstance(raw, dict):
        raise ApiError(400, f"the body must be a JSON object, not {type(raw).__name__}")
    given = {name: value for name, value in raw.items() if value is not None}
    is_stream = given.get("stream", False)
    if not isinstance(is_stream, bool):
        raise ApiError(400, f"stream must be true or false, not {shown(is_stream)}", "stream")
    foreign = "messages" if endpoint == "completions" else "prompt"
    if foreign in given:
        message = f"{foreign} is for another endpoint than {endpoint}"
        raise ApiError(400, message, foreign, "unknown_parameter")
    check_sizes(given, most_messages)
    # What is in a list of token ids is for `prompts_of` to check: they may be many.
    seen = given | {"prompt": ""} if isinstance(given.get("prompt"), list) else given
    try:
        SCHEMAS[endpoint, is_stream].validate_python(seen)
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0]) if first["loc"] else None  # the field; the rest names OpenAI's own types
        raise ApiError(400, f"{where}: {first['msg']}", where) from None
    for name, value in given.items():
        if name in READ or name in ACCOUNT or (name in OFF and value == OFF[name]):
            continue
        if name == "min_tokens" and has_its_least_anyway(given):
            continue
        if name in OFF:
            off = f"leave it out, or send {OFF[name]!r}"
            raise ApiError(400, f"{name} = {shown(value)} is not supported by this server: {off}", name)
        raise ApiError(400, f"unknown parameter {shown(name)}", quoted(name), "unknown_parameter")
    return given


def has_its_least_anyway(given: dict[str, Any]) -> bool:
    """Whether an answer of `min_tokens` and more is asked for, and nothing ends one before its limit."""
    least, most = given["min_tokens"], given.get("max_completion_tokens", given.get("max_tokens"))
    ends_at_its_limit = given.get("ignore_eos") is True and not given.get("stop")
    return ends_at_its_limit and is_whole(least) and is_whole(most) and 0 <= least <= most


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
    given: dict[str, Any], prompts: Sequence[str | Sequence[int]], default_max_tokens: int
) -> Asked:
    """The request, from a checked body and its prompts."""
    n = given.get("n", 1)
    if not is_whole(n) or n < 1 or n * len(prompts) > MOST_CHOICES:
        raise ApiError(400, f"n must be 1 or more, and n times the prompts at most {MOST_CHOICES}", "n")
    is_stream = given.get("stream", False)
    options = given.get("stream_options", {})
    if options and not is_stream:
        raise ApiError(400, "stream_options are for stream = true", "stream_options")
    for name, value in options.items():
        is_asked = value and name == "include_obfuscation"
        if name not in STREAM_OPTIONS or not isinstance(value, bool) or is_asked:
            names = "include_usage and continuous_usage_stats"
            message = f"stream_options has {names}, true or false, not {shown(name)} = {shown(value)}"
            raise ApiError(400, message, "stream_options")
    params = read_params(given, default_max_tokens)
    usage, continuous = options.get("include_usage", False), options.get("continuous_usage_stats", False)
    return Asked(prompts, params, n, is_stream, usage, continuous)


def read_params(given: dict[str, Any], default_max_tokens: int) -> SamplingParams:
    """How the tokens are picked. OpenAI draws unless it is told not to, so temperature is 1 by default."""
    most_name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    most = given.get(most_name, default_max_tokens)
    if given.get("max_tokens", most) != most:
        message = "max_tokens and max_completion_tokens are two names of one number; send one of them"
        raise ApiError(400, message, "max_tokens")
    names = {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "logprobs"} & given.keys()
    chosen = {name: given[name] for name in names}
    if chosen.get("top_k") == -1:  # how vLLM says "off"
        chosen["top_k"] = 0
    if is_whole(seed := chosen.get("seed")) and seed not in SEEDS:
        raise ApiError(400, "seed must be a whole number of 64 bits, -2**63 to 2**63 - 1", "seed")
    if not isinstance(ignores_eos := given.get("ignore_eos", False), bool):
        raise ApiError(400, f"ignore_eos must be true or false, not {shown(ignores_eos)}", "ignore_eos")
    try:
        return SamplingParams(
            max_new_tokens=most,
            stop_on_eos=not ignores_eos,
            **{"temperature": 1.0, **chosen},
        )
    except RequestError as error:
        message = str(error).replace("max_new_tokens", most_name)
        raise ApiError(400, message, message.split()[0]) from None
