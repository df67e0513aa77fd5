"""Chat templates: how a checkpoint wants the messages of a conversation written as one text."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from labkit.checks import quoted, shown
from labkit.errors import TOO_LONG, CheckpointError, RequestError
from labkit.json_file import is_there, read_bytes
from labkit.model.tokenizer import Tokenizer, first_token_ids, read_tokenizer_config, special_tokens

CHAT_FILE = "chat_template.jinja"
_importing = threading.Lock()  # transformers: of two threads that are its first, one would find half of it


class ChatTemplate(NamedTuple):
    """A checkpoint's template in Jinja, with the special tokens that it may name.

    It is data: transformers renders it in a sandbox, and no code of a checkpoint runs.
    """

    source: str
    tokens: dict[str, str]

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of a conversation, up to where the model's answer begins.

        messages: each with its "role", such as "system", "user" or "assistant", and its "content". Raises
        RequestError for messages that are none, or that the template refuses.
        """
        check_messages(messages)
        with _importing:
            from transformers.utils.chat_template_utils import render_jinja_template
        options: dict[str, Any] = {**self.tokens, "chat_template": self.source, "add_generation_prompt": True}
        try:
            rendered: Any = render_jinja_template([list(map(dict, messages))], **options)
        except Exception as error:  # Jinja's, or whatever the template's own expressions raise
            raise RequestError(f"the model's chat template refuses the messages: {quoted(error)}") from error
        (text,), _ = rendered
        return text


@dataclass(frozen=True)
class Voice:
    """How a model reads and writes: its name, its tokenizer, and its chat template if it has one. What there
    is of a model without its weights."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None = None

    def chat_prompt(self, messages: Sequence[Mapping[str, str]], most_tokens: int | None = None) -> list[int]:
        """The token ids of a conversation: see `LanguageModel.chat_prompt`. Raises RequestError for one of
        more than most_tokens, without tokenizing much more of it."""
        if self.chat_template is None:
            raise RequestError(
                f"{self.name} has no chat template: it goes on with texts, and was trained on no "
                "conversations. Use generate(text), or load a chat model, whose name often ends in -Instruct"
            )
        text = self.chat_template.render(messages)
        limit = len(text) if most_tokens is None else most_tokens
        token_ids, is_all = first_token_ids(text, self.tokenizer, limit, begins=False)
        if not is_all:
            raise RequestError(f"the messages have more than {2 * limit} tokens; {limit} fit", TOO_LONG)
        return token_ids


def check_messages(messages: object) -> None:
    """Raises RequestError unless there are messages, each with a role and a content."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise RequestError(
            f'messages must be a list such as [{{"role": "user", "content": "Hello"}}], not {shown(messages)}'
        )
    for message in messages:
        for name in ("role", "content"):
            value = message.get(name) if isinstance(message, Mapping) else None
            if not isinstance(value, str):
                raise RequestError(f'each of messages must have a "{name}" that is a text: {shown(message)}')


def read_chat_template(directory: Path) -> ChatTemplate | None:
    """The chat template of a checkpoint, from chat_template.jinja or tokenizer_config.json; None if it has
    none. Raises CheckpointError if one of them is damaged."""
    template_file = directory / CHAT_FILE
    try:
        config = read_tokenizer_config(directory)
        source = config.get("chat_template")
        if isinstance(source, list):  # of several, by name
            named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
            source = named.get("default")
        if is_there(template_file):
            source = read_bytes(template_file).decode("utf-8")
    except ValueError as error:  # which a UnicodeDecodeError is, too
        raise CheckpointError(f"the chat template in {directory} cannot be used: {quoted(error)}") from error
    if source is None:
        return None
    if not isinstance(source, str):
        raise CheckpointError(f"tokenizer_config.json has chat_template = {shown(source)}, which is no text")
    return ChatTemplate(source, special_tokens(config))
