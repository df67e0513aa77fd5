"""The rungs of the ladder, as data: each is the rung below with one option changed."""

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


class Ladder(dict[str, Rung]):
    """Rungs by number ("00"), in order."""

    def __init__(self, *rungs: Rung) -> None:
        super().__init__({rung.number: rung for rung in rungs})

    def __missing__(self, number: str) -> Rung:
        raise OptionError(f"there is no rung {number!r}; there are {', '.join(self)}")


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
