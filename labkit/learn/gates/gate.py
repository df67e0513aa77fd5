"""A rung's gate: whether an engine with the reader's part in it still is that engine."""

import os
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from labkit.checks import shown
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.errors import OptionError
from labkit.learn.answers import one_line
from labkit.learn.exercise import INSTALLED, BrokenContract, EndlessLoop, Unattempted, limited_lines
from labkit.learn.gates.schedule import GREEDY, LENGTHS, Invariant, Schedule
from labkit.learn.kept import GAP_MARK, num_gaps
from labkit.learn.verdict import Drawn, sentences
from labkit.model import GPT2Config, LanguageModel, load_model
from labkit.model.checkpoint import random_network
from labkit.model.tokenizer import WordTokenizer
from labkit.options import EngineOptions

TEXTS = ("To be, or not to be", "O", "KING HENRY VI:\nWhat news from Warwick?", "To be, or not to be")
NUM_TOKENS = 24  # of each text
TEXT_BLOCK_SIZE = 2  # of their cache
SEEDS = (0, 1, 2)  # of the schedules
POOLS = ((4, 12), (2, 14), (4, 12))  # of each: slots of a block, and blocks of a layer
NUM_MOVES = 80  # of a schedule
FEW_TOKENS, FEW_MOVES = 3, 25  # where a kernel of the reader's is interpreted
EOS = 66  # ends a text of the small model, in its middle, for a request that stops on it
MOST_LINES = 5_000_000  # of the reader's code in one trial; a right kernel that is interpreted runs 700,000
PACKAGE = str(Path(__file__).parents[2]) + os.sep  # as it was imported, and not resolved: links stay links
NOT_THE_READERS = (*INSTALLED, PACKAGE)  # what the names of such files begin with
BRACKETS = "A kernel is launched with its grid in square brackets: `kernel[grid](...)`."
KERNEL_HINTS = {  # what helps against an error that Triton or a GPU raises, by what its text has in it
    "ambiguous": "Two masks are joined by `&`, with brackets around each.",  # torch, of a mask as one truth
    "arange's arguments must be": "`tl.arange` takes constants alone: what differs from program to program "
    "is added to its row.",
    "must match the size of tensor": "In a kernel a column, `[:, None]`, and a row, `[None, :]`, make a "
    "rectangle. Outside of one: the next batch may have another size.",
    "has no attribute 'scalar'": BRACKETS,  # Triton's interpreter up to 3.8
    "has no attribute 'is_ptr'": BRACKETS,  # from 3.9 on
    "outside of the scope of a kernel": BRACKETS,  # Triton's compiler
    "Unsupported ptr type": "`tl.load` and `tl.store` take a pointer; a number that a kernel is given is "
    "used as it is.",
    "stream is capturing": "In a captured step the host gets no answer from the GPU: no `.item()`, no `if` "
    "about a tensor, no `.tolist()`, no `x[mask]`.",
}

# An engine of the rung, with the reader's part: build(model, cache=..., scheduler=...)
Build = Callable[..., InferenceEngine]
Trial = Callable[[Build], None]  # raises BrokenContract
# Inside the block, a broken contract is raised from wherever an engine breaks it; its value are invariants
# that hold between two moves.
Watch = Callable[[InferenceEngine], AbstractContextManager[Sequence[Invariant]]]


@dataclass(frozen=True)
class Report:
    """What a gate says: whether the part passed, and that it did, or the first contract that it broke.

    text: in a sentence. num_gaps: how many gaps a part that passed still has. step: which of its lesson's
    steps it is, such as "step 1 of 3". before: the step that is to be filled in first, for this one fails as
    that one did. broke: of a part that is broken on purpose, its name and what it does wrong.
    """

    ok: bool
    text: str
    num_gaps: int = 0
    step: str = ""
    before: str = ""
    broke: tuple[str, str] | None = None

    @classmethod
    def broken(cls, noun: str, contract: BrokenContract) -> "Report":
        """That the part called `noun` breaks a contract, and which."""
        return cls(False, f"{noun} breaks a contract: {contract}")

    def with_gaps_of(self, *parts: Callable) -> "Report":
        """The report; of a pass with how many gaps these parts have left, where their sources are found."""
        if not self.ok:
            return self
        try:
            return replace(self, num_gaps=num_gaps(*parts))
        except OptionError:
            return self

    def on_purpose(self, part: Callable) -> "Report":
        """The report on a part that is broken on purpose, and should be refused."""
        return replace(self, broke=(part.__name__, (part.__doc__ or "").partition("\n\n")[0]))

    @property
    def drawn(self) -> Drawn:
        """The report as a heading and rows."""
        noun, said = NOUN.fullmatch(self.text).groups()
        title = " · ".join(filter(None, (noun, self.step)))
        if self.broke is not None:
            name, what = self.broke
            rows = (("broke", one_line(what)), *(row for row in rows_of(self.text, said) if row[0] != "try"))
            mark, ending = ("✗", "not refused") if self.ok else ("✓", "refused, as it should be")
            return Drawn(mark, f"{name}, broken on purpose", ending, rows)
        if self.before:
            return Drawn("✗", title, "not yet", (("try", f"fill in {self.before} first"),))
        if self.num_gaps:
            gaps = "1 gap is left" if self.num_gaps == 1 else f"{self.num_gaps} gaps are left"
            return Drawn("○", title, gaps, (("try", f"replace `{GAP_MARK}` and the line below it"),))
        if self.ok:
            return Drawn("✓", title, "right", (("proven by", said.removeprefix("right. ")),))
        return Drawn("✗", title, "not yet", rows_of(self.text, said))

    def __repr__(self) -> str:
        return str(self.drawn)

    def _repr_html_(self) -> str:
        return self.drawn.html


# What a report is about, and what it says of that.
NOUN = re.compile(r"(?:(.+?)(?: breaks a contract: |: | (?=raised |has run )))?(.*)", re.DOTALL)


def rows_of(text: str, said: str) -> tuple[tuple[str, str], ...]:
    """What a report says, by the sentences of its text: what must hold, what was found, what to try."""
    if "breaks a contract: " not in text:
        return (("found", said),)
    holds, _, rest = said.partition(": ")
    found, hint = sentences(rest)
    return tuple(row for row in (("must hold", holds), ("found", found), ("try", hint)) if row[1])


@dataclass(frozen=True)
class Gate:
    """What a part must hold, the plainest first: it can be built, and the lesson's own trials find nothing;
    under random schedules the invariants hold, every block is accounted for and every request gets its
    tokens; text goes on as on the rung below and in transformers.

    parts: the options whose parts the reader writes. below: the options of the rung below; below_name: what a
    report calls it. watches: what looks into the engine while a schedule is played. samplings: of the
    schedules' requests, in turn. trials: the lesson's own, made first. costs: trials of what a right engine
    may not cost, made last. interpreted: those of `parts` that are kernels. A CPU interprets them, a
    program at a time, so schedules and texts are short where one of them is the reader's. prompt_budgets:
    what the SchedulerConfig of schedules and texts says of prompt tokens; with few, prompts take many chunks.
    """

    parts: tuple[str, ...]
    below: EngineOptions
    invariants: tuple[Invariant, ...] = ()
    watches: tuple[Watch, ...] = ()
    samplings: tuple[SamplingParams, ...] = (GREEDY,)
    trials: tuple[Trial, ...] = ()
    costs: tuple[Trial, ...] = ()
    interpreted: tuple[str, ...] = ()
    below_name: str = "the rung below"
    prompt_budgets: Mapping[str, int] = field(default_factory=dict)

    def check(self, build: Build, *own: str, is_slow: bool = False) -> Report:
        """Prove an engine's part, or parts. It never raises, but for an interrupt.

        own: those of `parts` that are the reader's in this engine, for the report; by default all. is_slow:
        whether another part of the engine is a kernel of the reader's.
        """
        parts = own or self.parts
        is_slow = is_slow or bool({*parts} & {*self.interpreted})
        num_moves, num_tokens = (FEW_MOVES, FEW_TOKENS) if is_slow else (NUM_MOVES, NUM_TOKENS)
        schedules = partial(self._schedules, num_moves=num_moves)
        same_text = partial(self._same_text, num_tokens=num_tokens)
        trials = (*self.trials, schedules, same_text, *self.costs)
        return proven(
            " with ".join(parts),
            [partial(trial, build) for trial in trials],
            f"{len(SEEDS)} random schedules, {self.below_name}'s text and transformers'.",
        )

    def _schedules(self, build: Build, num_moves: int) -> None:
        for seed, (block_size, num_blocks) in zip(SEEDS, POOLS, strict=True):
            engine = build(
                small_model(),
                dtype=torch.float32,
                cache=CacheConfig(block_size, num_blocks, max_prefix_entries=3),
                scheduler=SchedulerConfig(
                    max_batch_size=4, decode_first=bool(seed % 2), **self.prompt_budgets
                ),
            )
            with ExitStack() as stack:
                watched = [i for watch in self.watches for i in stack.enter_context(watch(engine))]
                invariants = (*self.invariants, *watched)
                Schedule(engine, self._alone, invariants, seed, self.samplings).play(num_moves)

    def _alone(self, prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        longest = replace(params, max_new_tokens=max(LENGTHS))  # begins with what fewer tokens are
        return tokens_alone(self.below, prompt, longest)[: params.max_new_tokens]

    def _same_text(self, build: Build, num_tokens: int) -> None:
        engine = build(
            trained_model(),
            dtype=torch.float32,
            cache=CacheConfig(block_size=TEXT_BLOCK_SIZE),
            scheduler=SchedulerConfig(max_batch_size=len(TEXTS), **self.prompt_budgets),
        )
        made = _texts(engine, num_tokens)
        _compare_texts(made, texts_of(self.below), f"on {self.below_name}")
        _compare_texts(made, transformers_texts(), "in transformers")


def proven(noun: str, trials: Iterable[Callable[[], None]], proof: str) -> Report:
    """What the reader's part, called `noun`, is said to be: right, with what was looked at, or the first
    contract that a trial found broken. It never raises, but for an interrupt, and a loop of the reader's that
    never stops is ended."""
    for trial in trials:
        try:
            with limited_lines(MOST_LINES, NOT_THE_READERS), np.errstate(all="ignore"):  # a GPU warns of none
                trial()
        except Unattempted:
            return Report(False, f"{noun}: not attempted yet.")
        except EndlessLoop:
            said = f"{noun} has run {MOST_LINES:,} lines without an end. Is there a loop that never stops?"
            return Report(False, said)
        except BrokenContract as broken:
            return Report.broken(noun, broken)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: a cell must not end the kernel
            first = asked_in_a_capture(error) or error
            hint = kernel_hint(first)
            return Report(False, f"{noun} {raised(first)}{f'.{hint}' if hint else ''}")
    return Report(True, f"{noun}: right. {proof}")


def kernel_hint(error: BaseException) -> str:
    """What helps against an error of a kernel, with a space before it; empty if nothing is known."""
    return next((f" {hint}" for text, hint in KERNEL_HINTS.items() if text in str(error)), "")


def asked_in_a_capture(error: BaseException | None) -> BaseException | None:
    """The error by which a CUDA graph's capture ended, if one did; those after it only say that it has."""
    while error is not None and "stream is capturing" not in str(error):
        error = error.__context__
    return error


def raised(error: BaseException) -> str:
    """An error of the reader's code in a sentence, with the line of theirs where it came from."""
    links: list[BaseException] = [error]
    while cause := links[-1].__cause__:  # Triton's interpreter wraps a kernel's error in one of its own
        links.append(cause)
    frames = [frame for link in links for frame in traceback.extract_tb(link.__traceback__)]
    lines = [f.line for f in frames if not f.filename.startswith(NOT_THE_READERS)]
    line = f", at `{lines[-1]}`" if lines and lines[-1] else ""
    told = next((link for link in links if type(link).__name__ != "InterpreterError"), error)
    key = told.args[:1] if isinstance(told, KeyError) else ()
    message = one_line(shown(*key) if key else str(told))  # a key's repr may be long
    return f"raised {type(told).__name__}{f': {message}' if message else ''}{line}"


# --- what is compared with -----------------------------------------------------------------------------


@cache
def small_model(num_layers: int = 2) -> LanguageModel:
    """Random weights, so small that a step takes a millisecond, and large enough for every token to depend on
    all before it."""
    config = GPT2Config(
        vocab_size=97, n_positions=64, n_embd=32, n_layer=num_layers, n_head=2, tie_word_embeddings=False
    )
    gpt2 = random_network(config, seed=0)
    for parameter in gpt2.parameters():
        parameter.data.mul_(20 if parameter.dim() == 2 else 1)
    return LanguageModel("random:small", gpt2, WordTokenizer(config.vocab_size, EOS))


@cache
def trained_model() -> LanguageModel:
    return load_model("data/tiny-gpt2")


@cache
def tokens_alone(options: EngineOptions, prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
    """What the small model makes of a prompt that shares an engine with no other."""
    engine = InferenceEngine(
        small_model(), options, device="cpu", cache=CacheConfig(4, 16, prefix_cache=False)
    )
    (completion,) = engine.generate([prompt], params)
    return completion.token_ids


@cache
def texts_of(options: EngineOptions) -> tuple[tuple[int, ...], ...]:
    """How the trained model goes on with TEXTS."""
    return _texts(InferenceEngine(trained_model(), options, device="cpu", dtype=torch.float32), NUM_TOKENS)


@cache
def transformers_texts() -> tuple[tuple[int, ...], ...]:
    from labkit.bench.parity import transformers_tokens

    model = trained_model().to("cpu", torch.float32)
    return tuple(transformers_tokens(model, [model.tokenizer.encode(text) for text in TEXTS], NUM_TOKENS))


def _texts(engine: InferenceEngine, num_tokens: int) -> tuple[tuple[int, ...], ...]:
    completions = engine.generate(TEXTS, SamplingParams(num_tokens, stop_on_eos=False))
    return tuple(completion.token_ids for completion in completions)


def _compare_texts(made: Sequence[tuple[int, ...]], expected: Sequence[tuple[int, ...]], where: str) -> None:
    decode = trained_model().tokenizer.decode
    for text, tokens, wanted in zip(TEXTS, made, expected, strict=True):
        for place, (token, other) in enumerate(zip(tokens, wanted, strict=False)):  # fewer may have been made
            if token != other:
                raise BrokenContract(
                    f"text: new token {place} after {shown(text)} is {token}, but {other} {where}: "
                    f"{decode(tokens)!r}, expected {decode(wanted[: len(tokens)])!r}."
                )
