"""Cost cards: what one decode step does, counted, and the key by which a recorded card is found."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from labkit.options import EngineOptions
from labkit.results.record import Record


@dataclass(frozen=True)
class HostCounts:
    """Counts of what the host does in one decode step."""

    manager_calls: int  # calls into the KVBlockManager from outside it
    kv_block_infos: int  # records of blocks created, of either kind
    aten_ops: int  # PyTorch operators dispatched
    index_tensors: int  # integer tensors made from Python numbers
    kv_bytes_written: int  # of new keys and values, in the pool


@dataclass(frozen=True)
class DeviceCounts:
    """Counts of what the GPU is asked for in one decode step. source: where they were counted."""

    kernels: int
    h2d_copies: int  # host to device
    h2d_bytes: int
    h2d_synchronizing: int  # of the copies, those from pageable memory: the host waits for each
    d2h_copies: int  # device to host
    synchronizations: int  # calls in which the host waits for the GPU, those of copies included
    source: str


@dataclass(frozen=True)
class CostCard:
    """Counts of one steady decode step of `batch_size` requests. device: None where no GPU's are known."""

    batch_size: int
    append_paths: dict[str, int]
    host: HostCounts
    device: DeviceCounts | None

    def column(self) -> dict[str, int]:
        """The counts by the words of a table's rows; those of the GPU where they are known."""
        counts = self.counts
        return dict(zip(ROWS[: len(counts)], counts.values(), strict=True))

    @property
    def caption(self) -> str:
        """Where the GPU's rows come from."""
        return f"GPU rows: {self.device.source}" if self.device else "GPU rows: none recorded"

    def table(self) -> pd.DataFrame:
        """The card as a table: a row per count."""
        return pd.DataFrame({"one step": self.column()}).rename_axis(columns=self.caption)

    @property
    def counts(self) -> dict[str, int]:
        """All counts by their name, "aten_ops"; those of the GPU where they are known."""
        both = asdict(self.host) | (asdict(self.device) if self.device else {})
        return {name: count for name, count in both.items() if isinstance(count, int)}


ROWS = (  # in the order of the fields
    "calls into KVBlockManager",
    "KVBlockInfo objects created",
    "aten operators dispatched",
    "index tensors constructed",
    "bytes of K/V written",
    "GPU: kernels launched",
    "GPU: host-to-device copies",
    "GPU: host-to-device bytes",
    "GPU: of the copies, synchronizing",
    "GPU: device-to-host copies",
    "GPU: the host waits for the GPU",
)


def counts_table(cards: Mapping[Hashable, CostCard], rows: Mapping[str, str]) -> pd.DataFrame:
    """Cards side by side, a column per card.

    rows: the counts to show, from a count's name ("aten_ops") to the words of its row; a count that no card
    has is left out.
    """
    table = pd.DataFrame({name: card.counts for name, card in cards.items()})
    return table.reindex([count for count in rows if count in table.index]).rename(index=rows)


@dataclass(frozen=True)
class CardKey:
    """What a card's counts depend on, beside the kind of machine.

    options: as they were recorded; a record that is older than an option does not name it.
    """

    model: str
    options: Mapping[str, str]
    block_size: int
    prompt_lens: tuple[int, ...]

    def is_same(self, other: "CardKey") -> bool:
        """Whether two keys name the same step; an option that is not named has its default."""

        def complete(key: CardKey) -> tuple:
            options: dict[str, Any] = {**key.options}
            return key.model, EngineOptions(**options), key.block_size, key.prompt_lens

        return complete(self) == complete(other)


@dataclass(frozen=True)
class RungCard:
    """A cost card that was counted on a rung, with the key it is found by."""

    rung: str
    batch_size: int
    key: CardKey
    card: CostCard


class CostCardRecord(Record):
    """What `python -m labkit.bench cost-card` recorded: cards by rung, model, batch size and prompts."""

    def cards(
        self, lengths: Collection[int], model: str = "random:gpt2", rungs: Sequence[str] | None = None
    ) -> dict[tuple[str, int], CostCard]:
        """Cards by (rung, batch size), in the record's order; where several fit, the last.

        lengths: the token counts of the prompts, which took them in turn. rungs: by default all.
        """
        return {
            (sample.rung, sample.batch_size): sample.card
            for sample in self.samples
            if sample.key.model == model
            and set(sample.key.prompt_lens) == set(lengths)
            and (rungs is None or sample.rung in rungs)
        }

    def device_counts(self, key: CardKey) -> DeviceCounts | None:
        """What the GPU is asked for in a step with this key; None if no card of the record says."""
        found = (s.card.device for s in self.samples if s.card.device is not None and s.key.is_same(key))
        return next(found, None)
