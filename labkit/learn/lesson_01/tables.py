"""Lesson 01: block tables whose rows are counted, and some that are wrong on purpose."""

from collections.abc import Sequence

from torch import Tensor

from labkit.bench import cost_cards
from labkit.engine import InferenceEngine
from labkit.kvcache import KVBlockManager, RebuiltBlockTables
from labkit.kvcache.block_tables import RowHolder
from labkit.learn.gates.gate import raised
from labkit.watch import steady_decode, steady_prompts


def rows_made(engine: InferenceEngine, num_steps: int = 128) -> str:
    """Of `num_steps` decode steps of 8 requests: how many rows a reader's block tables made, which count them
    in `num_made`, of how many that they handed out; and the index tensors of one more step."""
    tables = engine.decode_step.block_tables
    try:
        with steady_decode(engine, steady_prompts(8, lengths=(20, 23))) as request_ids:
            before = tables.num_made
            for _ in range(num_steps):
                engine.step()
            asked = num_steps * engine.kv_manager.num_layers * len(request_ids)
            made = tables.num_made - before
            _, index_tensors = cost_cards.count_operators(engine)
    except Exception as error:  # whatever the reader's code raises
        return f"rows made: not counted, because the engine {raised(error)}"
    return f"rows made: {made} of {asked}; index tensors in a step: {index_tensors}"


class NumberOnlyBlockTables(RebuiltBlockTables):
    """A block table cache that is wrong on purpose: it makes a row anew only when the *number* of blocks has
    changed."""

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        super().__init__(kv_manager, max_batch_size)
        self._kept: dict[RowHolder, tuple[int, Tensor]] = {}  # the number of blocks, and the rows [L, M]

    def fill(self, block_tables_cpu: Tensor, sessions: Sequence[RowHolder]) -> None:
        """Fill the tables [L, B, M] with the sessions' rows, made anew or kept."""
        super().fill(block_tables_cpu, sessions)
        for b, session in enumerate(sessions):
            num_blocks = len(session.block_ids_per_layer[0])
            if session not in self._kept or self._kept[session][0] != num_blocks:
                self._kept[session] = num_blocks, block_tables_cpu[:, b].clone()
            block_tables_cpu[:, b] = self._kept[session][1]
