"""The rungs of the ladder, as data: each is the rung below with one option changed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labkit.errors import OptionError
from labkit.options import EngineOptions


@dataclass(frozen=True)
class Rung:
    """One optimization: its number, its notebook's slug, where it comes from, and the engine that has it."""

    number: str
    slug: str
    title: str
    seed: str  # the write-up it follows
    removes: str  # what leaves the hot path
    options: EngineOptions

    @property
    def notebook(self) -> str:
        return f"{self.number}_{self.slug}.ipynb"


class Ladder(Mapping[str, Rung]):
    """Rungs by number ("00"), in order."""

    def __init__(self, *rungs: Rung) -> None:
        self._rungs = {rung.number: rung for rung in rungs}

    def __getitem__(self, number: str) -> Rung:
        if number not in self._rungs:
            raise OptionError(f"there is no rung {number!r}; there are {', '.join(self._rungs)}")
        return self._rungs[number]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rungs)

    def __len__(self) -> int:
        return len(self._rungs)


LADDER = Ladder(
    Rung(
        number="00",
        slug="paged_engine",
        title="An honest paged engine",
        seed="before 036",
        removes="nothing yet: block tables are rebuilt from Python lists every step and layer, "
        "and every layer and request has its own `append_token`",
        options=EngineOptions(block_tables="rebuilt", kv_append="per_token"),
    ),
)
