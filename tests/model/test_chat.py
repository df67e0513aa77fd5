"""Chat templates, against transformers' tokenizer of the same folder."""

import json
from pathlib import Path

import pytest
from small_checkpoint import save_small_checkpoint
from transformers import AutoTokenizer

from labkit import LanguageModel, load_model
from labkit.errors import CheckpointError, RequestError

CHATML = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'robot' %}"
    "{{ raise_exception('no robots here') }}{% endif %}"
    "{{ '<' + message['role'] + '>' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
END = "<|endoftext|>"
TOKENS = {"bos_token": {"__type": "AddedToken", "content": END, "special": True}, "eos_token": END}
TALK = [
    {"role": "system", "content": "The other."},
    {"role": "user", "content": " To be? "},
    {"role": "assistant", "content": "Not\n"},
]


def chat_model(folder: Path, template: str | None = None, **config: object) -> LanguageModel:
    save_small_checkpoint(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENS | config), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return load_model(folder)


@pytest.mark.parametrize(
    "stored",
    [
        {"template": CHATML},
        {"chat_template": CHATML},
        {"chat_template": [{"name": "tools", "template": "-"}, {"name": "default", "template": CHATML}]},
        {"chat_template": "-", "template": CHATML},
    ],
    ids=["a file", "in the config", "by name", "the file wins"],
)
def test_a_conversation_becomes_the_tokens_that_transformers_makes_of_it(tmp_path: Path, stored: dict):
    model = chat_model(tmp_path, **stored)
    token_ids = model.chat_prompt(TALK)
    assert token_ids == model.tokenizer.encode(
        f"{END}<system>The other.{END}<user> To be? {END}<assistant>Not\n{END}<assistant>"
    )
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(TALK, chat_template=CHATML, add_generation_prompt=True)
    assert token_ids == expected["input_ids"]


def test_special_tokens_that_stand_in_a_file_of_their_own_are_those_of_transformers(tmp_path: Path):
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": END, "sep_token": END}))
    model = chat_model(tmp_path, CHATML + "{{ sep_token }}", bos_token=None)
    expected = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(TALK, add_generation_prompt=True)
    assert model.chat_prompt(TALK) == expected["input_ids"]


def test_a_conversation_that_cannot_fit_is_not_tokenized_to_its_end(tmp_path: Path):
    voice = chat_model(tmp_path, CHATML).voice
    with pytest.raises(RequestError, match="more than 20 tokens; 10 fit") as refused:
        voice.chat_prompt([{"role": "user", "content": "To be. " * 1000}], 10)
    assert refused.value.code == "context_length_exceeded"
    assert len(voice.chat_prompt(TALK, 10)) > 10  # a little more is counted, and refused by its number


def test_a_model_without_a_template_and_messages_that_are_none_say_so(tmp_path: Path, tiny):
    with pytest.raises(RequestError, match=r"data/tiny-gpt2 has no chat template.*load a chat model"):
        tiny.chat_prompt(TALK)
    model = chat_model(tmp_path, CHATML)
    for wrong in ([], "Hello", None, {"role": "user", "content": "Hello"}):
        with pytest.raises(RequestError, match="messages must be a list such as"):
            model.chat_prompt(wrong)
    for wrong, name in (
        ("Hello", "role"),
        ({"role": "user"}, "content"),
        ({"role": 1, "content": ""}, "role"),
    ):
        with pytest.raises(RequestError, match=f'each of messages must have a "{name}"'):
            model.chat_prompt([wrong])
    with pytest.raises(RequestError, match=r"template refuses the messages: no robots here"):
        model.chat_prompt([{"role": "robot", "content": "Hello"}])


@pytest.mark.parametrize(
    "source", ["{{ messages", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ 1/0 }}"]
)
def test_a_template_that_is_broken_or_reaches_for_python_fails_where_it_is_used(tmp_path: Path, source: str):
    with pytest.raises(RequestError, match=r"template refuses the messages: ."):
        chat_model(tmp_path, source).chat_prompt(TALK)


def test_a_damaged_file_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json has chat_template = 3"):
        chat_model(tmp_path, chat_template=3)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json holds \[\], not an object"):
        load_model(tmp_path)
