"""Lesson 05: what a manager must hold whose records are counted up in place."""

from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.appends import failed_write, own_slots, started
from labkit.learn.gates.cached import STORED, TRUE_RECORDS
from labkit.learn.gates.gate import Build, Gate
from labkit.learn.lesson_05.work import CountedDict
from labkit.watch import replaced


def counted_in_place(build: Build) -> None:
    """A trial: a step in which no token needs a block writes no entry of the table of records."""
    engine = started(build)
    manager = engine.kv_manager
    while any(session.next_token_takes_block for session in engine.scheduler.running.values()):
        engine.step()
    with replaced(manager, "block_infos", CountedDict) as noted:
        engine.step()
    if noted.written:
        raise BrokenContract(
            "a record is counted up in place: in a step in which each last block had room, the table of "
            f"records was written for the blocks {noted.written}, expected for none. The table has the "
            "record already: change its `length`, in `set_length` too."
        )


def counted_paths(build: Build) -> None:
    """A trial: each appended token is counted once in `append_paths`, by how its block was made ready."""
    engine = started(build)
    num_layers = engine.kv_manager.num_layers
    how = ("first", "boundary", "copy_on_write", "in_place")
    while engine.has_work:
        num_tokens, before = num_layers * len(engine.scheduler.running), engine.stats().append_paths
        engine.step()
        after = engine.stats().append_paths
        counted = sum(after.get(path, 0) - before.get(path, 0) for path in how)
        if counted != num_tokens:
            raise BrokenContract(
                f"`append_paths` counts how each token's block was made ready: a step that appended "
                f"{num_tokens} tokens, in {num_layers} layers, counted {counted}, expected {num_tokens}. "
                '`ready_block` counts those that it makes ready; count the others as "in_place".'
            )


GATE = Gate(
    ("block_info",),
    LADDER["04"].options,
    invariants=(TRUE_RECORDS, STORED),
    trials=(counted_in_place, own_slots, failed_write, counted_paths),
)
