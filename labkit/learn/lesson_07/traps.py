"""Lesson 07: a reservation that is wrong on purpose."""

from labkit.kvcache import OneTableBlockManager


class ForgetsTheCopy(OneTableBlockManager):
    """Makes room without a look at who else holds a block: a new block when the last one is full, and no copy
    of one that is shared."""

    def reserve_token_batch(self, table_idx: int, block_ids_list: list[list[int]]) -> list[int]:
        """Make room for one more token behind each sequence; returns which of the lists changed."""
        changed = []
        for b, block_ids in enumerate(block_ids_list):
            if self.num_tokens(block_ids) == len(block_ids) * self.block_size:
                self.ready_block(table_idx, block_ids)
                changed.append(b)
            self.info(block_ids[-1]).length += 1
        return changed
