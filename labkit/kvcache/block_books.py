"""The books of a KV pool: which blocks are free, how many holders share one, how full each is."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

from labkit.errors import OutOfBlocksError
from labkit.kvcache.block_info import BlockInfo, KVBlockInfo, MutableKVBlockInfo


class BlockHolder(Protocol):
    """What keeps blocks alive: a session or an entry of the prefix cache."""

    @property
    def block_ids_per_layer(self) -> list[list[int]]:
        """Its blocks, in order, for each table."""

    @property
    def start(self) -> int:
        """Position of the first token in them."""

    @property
    def num_tokens(self) -> int:
        """Tokens in them."""


class BlockBooks:
    """Every block of a pool is free, or has a record and a number of holders.

    A block's global id is layer * max_blocks_per_layer + its index in the layer. Queries change nothing. A
    command that finds no free block changes nothing: `allocate_block` raises, `add_blocks` returns False.
    """

    watch_points: ClassVar[tuple[str, ...]] = ("allocate_block", "add_blocks", "block_infos")
    info_type: type[KVBlockInfo] | type[MutableKVBlockInfo] = KVBlockInfo
    block_infos: dict[int, Any]  # by block id, what `info_type` makes

    def __init__(self, num_layers: int, block_size: int, max_blocks_per_layer: int) -> None:
        """Every block is free."""
        self.num_layers = num_layers
        self.num_tables = self.count_tables(num_layers)
        self.block_size = block_size
        self.max_blocks_per_layer = max_blocks_per_layer
        self.num_let_go = 0  # how often a holder has released a block, ever
        self.num_shares = 0  # how often blocks got one more holder, ever
        self.block_infos = {}
        self.block_refcounts: dict[int, int] = {}
        self._freed: list[list[int]] = [[] for _ in range(self.num_tables)]  # indices, last freed first out
        self._num_fresh_used = [0] * self.num_tables  # block indices from here on were never handed out

    # --- queries -----------------------------------------------------------------------------------

    @staticmethod
    def count_tables(num_layers: int) -> int:
        """How many lists of block ids a sequence has: one per layer."""
        return num_layers

    def layers_of(self, table_idx: int) -> int | slice:
        """The layers whose blocks one table names, as an index into the pool's first dimension."""
        return table_idx

    @property
    def num_free_blocks(self) -> int:
        """Free blocks in the layer that has the fewest."""
        return min(map(self.num_free, range(self.num_tables)))

    def num_free(self, layer_idx: int) -> int:
        """Free blocks in one layer, or in the one table of all layers."""
        return self.max_blocks_per_layer - self._num_fresh_used[layer_idx] + len(self._freed[layer_idx])

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill, in one layer."""
        return -(-num_tokens // self.block_size)

    def layer_offset(self, layer_idx: int) -> int:
        """The global id of the layer's block 0."""
        return layer_idx * self.max_blocks_per_layer

    def info(self, block_id: int) -> BlockInfo:
        """The record of an allocated block. Raises KeyError for any other id."""
        return self.block_infos[block_id]

    def refcount(self, block_id: int) -> int:
        """How many holders an allocated block has. Raises KeyError for any other id."""
        return self.block_refcounts[block_id]

    def num_tokens(self, block_ids: list[int]) -> int:
        """Tokens counted in the blocks of a sequence. Raises KeyError for an id that is not allocated."""
        return sum(self.block_infos[i].length for i in block_ids)

    def append_takes_block(self, block_ids: list[int]) -> bool:
        """Whether the next token needs a block: a new one, or a copy of a shared, partly filled one."""
        if not block_ids:
            return True
        last_id = block_ids[-1]
        return self.block_infos[last_id].length == self.block_size or self.block_refcounts[last_id] > 1

    # --- commands ----------------------------------------------------------------------------------

    def allocate_block(self, layer_idx: int, start: int) -> int:
        """Take a free block for the tokens from position `start` on; its id. Raises OutOfBlocksError."""
        if self._freed[layer_idx]:
            block_index = self._freed[layer_idx].pop()
        elif self._num_fresh_used[layer_idx] < self.max_blocks_per_layer:
            block_index = self._num_fresh_used[layer_idx]
            self._num_fresh_used[layer_idx] += 1
        else:
            raise OutOfBlocksError(
                f"layer {layer_idx} has no free block: all {self.max_blocks_per_layer} blocks of "
                f"{self.block_size} tokens are in use"
            )
        block_id = self.layer_offset(layer_idx) + block_index
        self.block_infos[block_id] = self.info_type(layer_idx, block_index, start, length=0)
        self.block_refcounts[block_id] = 1
        return block_id

    def add_blocks(self, sequences: Sequence[list[list[int]]]) -> bool:
        """Take a block behind each of these sequences, whose last one is full, in each table. False, with
        nothing changed, if there are too few. A sequence is its lists of block ids, one a table."""
        if len(sequences) > self.num_free_blocks:
            return False
        for block_ids_per_layer in sequences:
            for table_idx, block_ids in enumerate(block_ids_per_layer):
                start = self.block_infos[block_ids[-1]].start + self.block_size
                block_ids.append(self.allocate_block(table_idx, start))
        return True

    def deallocate_block(self, block_id: int) -> None:
        """One holder lets go of a block; the last one gives it back."""
        self.num_let_go += 1
        if self.block_refcounts[block_id] > 1:
            self.block_refcounts[block_id] -= 1
            return
        info = self.block_infos.pop(block_id)
        del self.block_refcounts[block_id]
        self._freed[info.layer].append(info.block_index)

    def set_length(self, block_id: int, length: int) -> None:
        """Record that a block holds `length` tokens."""
        info = self.block_infos[block_id]
        self.block_infos[block_id] = KVBlockInfo(
            layer=info.layer, block_index=info.block_index, start=info.start, length=length
        )

    def share(self, block_ids: list[int]) -> list[int]:
        """Count one more holder of each of these blocks; returns the new holder's own list of ids."""
        self.num_shares += 1
        for block_id in block_ids:
            self.block_refcounts[block_id] += 1
        return list(block_ids)

    def free(self, block_ids: list[int]) -> None:
        """Release a sequence's blocks and empty the list; a block becomes free with its last holder."""
        while block_ids:
            self.deallocate_block(block_ids.pop())

    def truncate(self, block_ids: list[int], num_tokens: int) -> None:
        """Forget what was appended to a sequence past `num_tokens`: how a failed step is undone.

        Raises ValueError, with nothing changed, if the cut falls inside a block that has other holders.
        """
        num_tokens = min(num_tokens, self.num_tokens(block_ids))
        num_kept = self.blocks_for(num_tokens)
        if num_kept:
            last_id = block_ids[num_kept - 1]
            info = self.block_infos[last_id]
            if info.start + info.length > num_tokens:
                if self.block_refcounts[last_id] > 1:
                    raise ValueError(f"block {last_id} is shared; it cannot be cut at token {num_tokens}")
                self.set_length(last_id, num_tokens - info.start)
        while len(block_ids) > num_kept:
            self.deallocate_block(block_ids.pop())

    # --- proof -------------------------------------------------------------------------------------

    def check_integrity(self, holders: Iterable[BlockHolder]) -> None:
        """Check every record against all holders of blocks. Raises AssertionError naming what is wrong.

        Every block is free or referenced exactly as often as holders name it; every block but a
        holder's last is full; each holder's lengths add up in each layer.
        """
        counted: Counter[int] = Counter()
        for holder in holders:
            for layer_idx, block_ids in enumerate(holder.block_ids_per_layer):
                counted.update(block_ids)
                self._check_sequence(layer_idx, block_ids, holder.start, holder.num_tokens)
        if dict(counted) != self.block_refcounts:
            off = {
                i: (self.block_refcounts.get(i, 0), counted[i])
                for i in counted.keys() | self.block_refcounts.keys()
                if self.block_refcounts.get(i, 0) != counted[i]
            }
            raise AssertionError(f"reference counts differ from holders (block: booked, held): {off}")
        if odd := self.block_infos.keys() ^ self.block_refcounts.keys():
            raise AssertionError(f"blocks {sorted(odd)} have a record or a reference count, but not both")
        for table_idx in range(self.num_tables):
            self._check_pool(table_idx)

    def _check_sequence(self, layer_idx: int, block_ids: list[int], start: int, num_tokens: int) -> None:
        for place, block_id in enumerate(block_ids):
            info = self.block_infos.get(block_id)
            if info is None:
                raise AssertionError(f"block {block_id} is held but not allocated")
            filled = min(self.block_size, num_tokens - place * self.block_size)
            expected = self.info_type(
                layer_idx, block_id - self.layer_offset(layer_idx), start + place * self.block_size, filled
            )
            if info != expected:
                raise AssertionError(f"block {block_id} is booked as {info}, but its holder needs {expected}")
        if len(block_ids) != self.blocks_for(num_tokens):
            raise AssertionError(
                f"{num_tokens} tokens in layer {layer_idx} are held in {len(block_ids)} blocks"
            )

    def _check_pool(self, layer_idx: int) -> None:
        freed = self._freed[layer_idx]
        used = {i.block_index for i in self.block_infos.values() if i.layer == layer_idx}
        if sorted([*freed, *used]) != list(range(self._num_fresh_used[layer_idx])):
            raise AssertionError(
                f"layer {layer_idx}: used {sorted(used)} and freed {sorted(freed)} blocks do not make up "
                f"the {self._num_fresh_used[layer_idx]} handed out"
            )
