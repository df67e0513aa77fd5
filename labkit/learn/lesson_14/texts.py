"""Lesson 14: questions behind one system prompt, and a conversation, as token ids."""

from collections.abc import Sequence
from itertools import product

from labkit.model.tokenizer import Tokenizer

SYSTEM = (
    "You are the fool of a king, and the wisest man at his court. You answer every question in verse, and "
    "never in more than two lines. You speak the truth, but you wrap it in a jest. You name no man who is "
    "alive, and you praise no man who is dead. If you do not know an answer, ask a better question. If the "
    "king asks, begin with his crown. If the queen asks, begin with a rose. To all others you begin with the "
    "weather, for it is the same for all of them.\n"
)
FORMS = (
    "What is {}?",
    "Who speaks of {}?",
    "Where is {} found?",
    "How long does {} last?",
    "What comes after {}?",
    "Tell me of {}.",
    "Is {} for kings?",
    "Who fears {}?",
)
SUBJECTS = ("love", "honour", "sleep", "war", "a crown", "the sea", "winter", "death")
TURNS = tuple(
    form.format(subject)
    for form, subject in zip((*FORMS, *FORMS[:2]), (*SUBJECTS, "a king", "me"), strict=True)
)


def questions(num: int = 64) -> list[str]:
    """So many different questions, 64 at most."""
    return [form.format(subject) for form, subject in product(FORMS, SUBJECTS)][:num]


def behind_system(tokenizer: Tokenizer, asked: Sequence[str]) -> list[tuple[int, ...]]:
    """A prompt per question: the system prompt, and the question."""
    system = tokenizer.encode(SYSTEM)
    return [(*system, *tokenizer.encode(question)) for question in asked]


def behind_the_hour(tokenizer: Tokenizer, asked: Sequence[str]) -> list[tuple[int, ...]]:
    """The prompts of `behind_system`, each with the time of its request in front."""
    prompts = enumerate(behind_system(tokenizer, asked))
    return [(*tokenizer.encode(hour(minute)), *prompt) for minute, prompt in prompts]


def before_the_question(tokenizer: Tokenizer, asked: Sequence[str]) -> list[tuple[int, ...]]:
    """The same with the time behind the system prompt."""
    return behind_system(tokenizer, [hour(minute) + question for minute, question in enumerate(asked)])


def hour(minute: int) -> str:
    """The time of a request that came so many minutes after nine."""
    return f"It is {9 + minute // 60} of the clock and {minute % 60}. "
