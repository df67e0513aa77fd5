"""Lesson 17: an engine that drafts by the reader's functions, and its tokens beside those without drafts."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.step.verify import VerifyStep
from labkit.kernels.verify_rows import NOT_MADE
from labkit.ladder import FINISHED
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import trained_model
from labkit.learn.lesson_16.gate import check_text

Drafts = Callable[[Tensor, Tensor, Tensor, int], Tensor]
Accepted = Callable[[Tensor, Tensor], Tensor]
NGRAMS = replace(FINISHED.options, speculation="ngrams")
BLOCK_SIZE = 4
TEXTS = ("To be, or not to be", "the king, the king, the", "O Romeo, Romeo! wherefore art thou Romeo?")
GREEDY = SamplingParams(40, stop_on_eos=False)
DRAWN = SamplingParams(40, temperature=0.6, seed=17, stop_on_eos=False)


class ReadersStep(VerifyStep):
    """A step that verifies drafts by the reader's functions, where they are given."""

    def __init__(self, *args: Any, find: Drafts | None = None, accept: Accepted | None = None) -> None:
        super().__init__(*args)
        self._accept = accept
        if find is not None:
            self.find_drafts = partial(self._found, find)

    def _found(
        self, find: Drafts, texts: Tensor, lens: Tensor, slot_mapping: Tensor, limits: Tensor, num_drafts: int
    ) -> Tensor:
        """The drafts [B, K]; here lens [S] is without each text's last token."""
        return find(texts[slot_mapping].long(), lens[slot_mapping].long() + 1, limits, num_drafts)

    def accepted(self, made: Tensor, drafts: Tensor) -> Tensor:
        """How many drafts [B] are accepted; what the reader's function keeps takes the place of `made`."""
        if self._accept is None:
            return super().accepted(made, drafts)
        kept = self._accept(drafts, made.clone())
        made.copy_(torch.where(kept == NOT_MADE, made, kept))
        return (kept != NOT_MADE).sum(dim=1) - 1


def engine_with(find: Drafts | None = None, accept: Accepted | None = None) -> InferenceEngine:
    """An engine that drafts, of the small model, with the reader's functions in the package's places."""
    parts, cache = {"speculation": partial(ReadersStep, find=find, accept=accept)}, CacheConfig(BLOCK_SIZE)
    return InferenceEngine(
        trained_model(), NGRAMS, device="cpu", dtype=torch.float32, parts=parts, cache=cache
    )


class Made(NamedTuple):
    """The tokens of TEXTS, and the decode steps that they took."""

    token_ids: tuple[tuple[int, ...], ...]
    steps: int


def made_by(engine: InferenceEngine, params: SamplingParams) -> Made:
    """What an engine makes of TEXTS, one after another."""
    before = engine.stats().counters.decode_steps
    token_ids = tuple(engine.generate([text], params)[0].token_ids for text in TEXTS)
    engine.check_integrity()
    return Made(token_ids, engine.stats().counters.decode_steps - before)


@cache
def without_drafts(params: SamplingParams) -> Made:
    """What rung 14 makes of them."""
    return made_by(InferenceEngine(trained_model(), FINISHED.options, device="cpu"), params)


def beside(*parts: Any) -> Iterator[tuple[str, Made, Made]]:
    """How tokens are chosen, what an engine with these functions makes then, and what rung 14 makes."""
    engine = engine_with(*parts)
    for name, params in (("greedy", GREEDY), ("drawn, temperature 0.6", DRAWN)):
        yield name, made_by(engine, params), without_drafts(params)


def same_tokens(*parts: Any) -> None:
    """Raise BrokenContract unless an engine with these functions makes the tokens of rung 14, greedy ones in
    fewer steps."""
    for name, made, right in beside(*parts):
        for text, tokens, expected in zip(TEXTS, made.token_ids, right.token_ids, strict=True):
            check_text(f"the tokens are those without drafts: {name},", text, tokens, expected)
        if name == "greedy" and made.steps >= right.steps:
            raise BrokenContract(
                f"right drafts save steps: the tokens are right, in {made.steps} steps, and without drafts "
                f"there were {right.steps}."
            )


def table_of(*parts: Any) -> pd.DataFrame:
    """A row per way to choose tokens: whether they are rung 14's, and the steps with drafts and without."""
    rows = {
        name: [made.token_ids == right.token_ids, made.steps, right.steps]
        for name, made, right in beside(*parts)
    }
    columns = ["the same tokens", "steps", "without drafts"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def text_by(accept: Accepted) -> tuple[int, str]:
    """In how many steps an engine with this acceptance goes on with all texts, and how with the second."""
    made = made_by(engine_with(None, accept), GREEDY)
    return made.steps, trained_model().tokenizer.decode(made.token_ids[1])
