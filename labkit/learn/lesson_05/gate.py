"""Lesson 05: what a manager must hold whose records are counted up in place."""

from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.appends import failed_write, own_slots, started
from labkit.learn.gates.cached import STORED, TRUE_RECORDS
from labkit.learn.gates.gate import Build, Gate
from labkit.learn.lesson_05.work import CountedDict
from labkit.watch import replaced

NAME = "a record is counted up in place"


def mutable_records(build: Build) -> None:
    """`set_length` sets the length in the record that is there."""
    engine = started(build)
    manager = engine.kv_manager
    session, *_ = engine.scheduler.running.values()
    for layer_idx, (block_id, *_) in enumerate(session.block_ids_per_layer):
        before = manager.info(block_id)
        manager.set_length(block_id, before.length)
        if (now := manager.info(block_id)) is not before:
            raise BrokenContract(
                f"{NAME}: `set_length` of block {block_id} (layer {layer_idx}) put another record into the "
                f"table, {now}, expected the one that was there. Set its `length`."
            )


def counted_in_place(build: Build) -> None:
    """A step in which no token needs a block makes no record and writes no entry of the table of records."""
    engine = started(build)
    manager = engine.kv_manager
    while any(session.next_token_takes_block for session in engine.scheduler.running.values()):
        engine.step()
    with replaced(manager, "block_infos", CountedDict) as noted:
        engine.step()
    if noted.written:
        raise BrokenContract(
            f"{NAME}: in a step in which each last block had room, the table of records was written for the "
            f"blocks {noted.written}, expected for none. The table has the record already: change its "
            "`length`."
        )


def counted_paths(build: Build) -> None:
    """Each appended token is counted once in `append_paths`, by how its block was made ready."""
    engine = started(build)
    num_layers = engine.kv_manager.num_layers

    def made_ready() -> int:
        """Tokens counted so far by how their block was made ready."""
        paths = engine.stats().append_paths
        return sum(paths.get(path, 0) for path in ("first", "boundary", "copy_on_write", "in_place"))

    while engine.has_work:
        num_tokens, before = num_layers * len(engine.scheduler.running), made_ready()
        engine.step()
        if (counted := made_ready() - before) != num_tokens:
            raise BrokenContract(
                f"`append_paths` counts how each token's block was made ready: a step that appended "
                f"{num_tokens} tokens, in {num_layers} layers, counted {counted}, expected {num_tokens}. "
                '`ready_block` counts those that it makes ready; count the others as "in_place".'
            )


GATE = Gate(
    ("block_info",),
    LADDER["04"].options,
    invariants=(TRUE_RECORDS, STORED),
    trials=(mutable_records, own_slots, failed_write, counted_in_place, counted_paths),
)
