"""An engine of any rung from the parts that the reader kept, with the package's where none is kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd
import torch

from labkit.engine import InferenceEngine
from labkit.engine.parts import Part
from labkit.ladder import LADDER
from labkit.learn.gates import Report
from labkit.learn.kept import Kept
from labkit.learn.lessons import GATES
from labkit.model import LanguageModel

# By option and lesson, the first rung whose engine no longer asks for the part, though the value has stayed.
RETIRED = {
    ("attention", "00"): "06",
    ("kv_append", "02"): "05",  # it makes records anew, and rung 05 counts in those that are there
    ("kv_write", "04"): "06",
    ("block_info", "05"): "06",  # which reserves room by a call that the lesson's does not have
    ("kv_write", "07"): "09",  # attention is split from there on
    ("layer_kernels", "09"): "11",  # a step with lanes has layers of its own
}
SECONDS = 15  # in which a part is proven on two cores of a laptop, on average


@dataclass(frozen=True)
class Assembly:
    """Kept parts, and the engines that they make. Nothing of the reader's runs before an engine is built."""

    kept: Sequence[Kept]
    _loaded: dict[Kept, Part] = field(default_factory=dict, repr=False, compare=False)

    # --- queries: nothing is run ---------------------------------------------------------------------------

    def kept_on(self, number: str) -> dict[str, Kept]:
        """By option, the kept parts that an engine of this rung is built from: of each lesson's own part the
        newest whose value of the option the rung still has."""
        found = {}
        for kept in sorted(self.kept, key=lambda kept: kept.lesson):
            if kept.lesson <= number and _is_lessons_own(kept) and _is_used(kept, number):
                found[kept.option] = kept
        return found

    def table(self) -> pd.DataFrame:
        """A row per rung: what it changed, and which parts of its engine are yours."""
        rows, below = {}, None
        for number, rung in LADDER.items():
            now = asdict(rung.options)
            changed = [f"{n}: {now[n]}" for n in now if below and now[n] != below[n]]
            mine = [f"{option} (lesson {kept.lesson})" for option, kept in self.kept_on(number).items()]
            rows[number] = {
                "rung": rung.title,
                "what changed": ", ".join(changed),
                "yours": ", ".join(mine) or "(the package's)",
            }
            below = now
        return pd.DataFrame.from_dict(rows, orient="index")

    def without(self, *options: str) -> "Assembly":
        """The assembly with the package's parts for these options."""
        return Assembly([kept for kept in self.kept if kept.option not in options], self._loaded)

    # --- engines -------------------------------------------------------------------------------------------

    def parts_on(self, number: str) -> dict[str, Part]:
        """The parts themselves, by option. What the reader's files raise passes through."""
        return {option: self._load(kept) for option, kept in self.kept_on(number).items()}

    def engine(
        self, number: str, model: LanguageModel, *, device: torch.device | str | None = None, **settings: Any
    ) -> InferenceEngine:
        """An engine of this rung; settings: as `InferenceEngine` takes them."""
        options, parts = LADDER[number].options, self.parts_on(number)
        return InferenceEngine(model, options, device=device, parts=parts, **settings)

    def proven(
        self, device: torch.device | str, told: Callable[[str], object] = lambda text: None
    ) -> tuple["Assembly", Mapping[Kept, Report]]:
        """The assembly of the parts that pass, and what the gates say.

        Part by part, from the lowest rung up: the lesson's gate on an engine of the lesson's rung, which has
        the new part and all before it that passed and that this rung has a use for. It never raises, but for
        an interrupt and for what `told` raises.

        told: called with a line that says how long it takes, and with each verdict as it falls.
        """
        reports: dict[Kept, Report] = {}
        passed = Assembly((), self._loaded)
        own = sorted(filter(_is_lessons_own, self.kept), key=lambda kept: kept.lesson)
        told(f"{len(own)} kept parts to prove; without a GPU it takes about {len(own) * SECONDS} seconds.")
        for kept in own:
            candidate = Assembly((*passed.kept, kept), self._loaded)
            serving = candidate.kept_on(kept.lesson).values()

            def build(model: LanguageModel, **settings: Any) -> InferenceEngine:
                return candidate.engine(kept.lesson, model, device=device, **settings)  # noqa: B023

            is_slow = any(part.option in GATES[part.lesson].interpreted for part in serving)
            reports[kept] = GATES[kept.lesson].check(build, kept.option, is_slow=is_slow)
            told(f"{kept.path.name}: {reports[kept]}")
            if reports[kept].ok:
                passed = candidate
        return passed, reports

    def _load(self, kept: Kept) -> Part:
        if kept not in self._loaded:  # a class is one thing, however many engines have it
            self._loaded[kept] = kept.load()
        return self._loaded[kept]


def _is_lessons_own(kept: Kept) -> bool:
    gate = GATES.get(kept.lesson)
    return gate is not None and kept.option in gate.parts


def _is_used(kept: Kept, number: str) -> bool:
    value, own_value = (getattr(LADDER[n].options, kept.option) for n in (number, kept.lesson))
    return value == own_value and number < RETIRED.get((kept.option, kept.lesson), "99")
