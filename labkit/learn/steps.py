"""The build steps of each lesson, and the mark that a right one leaves in the reader's progress."""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from labkit.learn.answers import difference, one_line
from labkit.learn.exercise import BrokenContract, Exercise
from labkit.learn.gates import Report
from labkit.learn.kept import is_written
from labkit.learn.progress import note_gate

# By the lesson's number, in order: the name of the part that a step writes, of its check, or of the option
# that it completes. A lesson is passed when its last step is right, which holds all others, but for APART.
STEPS = {
    "00": ("my_gather", "my_weights", "my_loops", "attention"),
    "01": ("MyRows", "MyTwoNumbers", "block_tables"),
    "02": ("MyFastPath", "MyOneWrite", "kv_append"),
    "03": ("MyDispatch", "my_offsets", "MyGeneric", "kv_write"),
    "04": ("MyRule", "MyKernel", "kv_write"),
    "05": ("MyRecords", "MyAppend", "block_info"),
    "06": ("MyKeptSlots", "MyDirtyRows", "block_tables"),
    "07": ("MyOneTable", "layer_tables", "kv_write"),
    "08": ("replay", "MyGraphs", "launch"),
    "09": ("product", "norm_linear", "merge", "layer_kernels"),
    "10": ("MyOrder", "MyRows", "readback"),
    "11": ("held", "MyRows", "MyWorkspaces", "latency"),
    "12": ("my_draw", "my_search", "sampler"),
    "13": ("MyRows", "batching", "shares"),
    "14": ("MyKeys", "MyFind", "MyKeep", "prefixes"),
    "15": ("rms_linear", "gated_linear", "rotation", "group", "latency"),
    "16": ("my_quantize", "my_attend", "my_bound"),
    "17": ("my_drafts", "my_accepted", "my_take_back", "MyBalance"),
    "18": ("my_shard", "my_layer", "my_order"),
    "19": ("num_held", "MyStops", "my_frames", "my_leaving", "my_admit"),
    "20": ("quantize", "layer", "weights"),
}


APART = {"13", "16", "17", "18", "19"}  # lessons whose last step can be right without the others


def share_right(lesson: str, done: Sequence[str]) -> float:
    """The share of a lesson's steps that are right; 1 as soon as one is that holds all others."""
    steps = STEPS[lesson]
    if lesson not in APART and steps[-1] in done:
        return 1.0
    return sum(step in done for step in steps) / len(steps)


def check_calls(exercise: Exercise, hint: str, part: Callable) -> None:
    """Raise BrokenContract, with the exercise's contract, for the first of its random calls that a part
    answers in another way than its solution."""
    for arguments in exercise.calls():
        answer = part(*copy.deepcopy(arguments).values())
        if wrong := difference(answer, exercise.solution(**arguments)):
            given = ", ".join(f"{name}={one_line(repr(value))}" for name, value in arguments.items())
            raise BrokenContract(f"{exercise.contract}: with {given}, it gave {wrong} {hint}")


# By lesson and step: what is wrong with it now, in a sentence without its numbers, which a later step's gate
# counts in another engine.
FAILED: dict[str, dict[int, str]] = {}
NUMBER = re.compile(r"\d[\d,.]*")


def noted(report: Report, lesson: str, step: str, part: Callable) -> Report:
    """The report on a part, with its step, and how many gaps are left in it. A pass without one is noted in
    the reader's progress as the step that bears the part's name, or as `step`."""
    name, steps = getattr(getattr(part, "fn", part), "__name__", ""), STEPS[lesson]  # a Triton kernel has fn
    step = name if name in steps else step
    if report.ok and is_written(part):
        note_gate(lesson, step)
    report = report.with_gaps_of(part)
    return in_turn(report, lesson, steps.index(step) + 1) if step in steps else report


def in_turn(report: Report, lesson: str, number: int) -> Report:
    """The report with its step's number; where the step fails as one before it does, with that step's."""
    failed = FAILED.setdefault(lesson, {})
    failed.pop(number, None)
    wrong = "" if report.ok else NUMBER.sub("#", report.text.partition(" breaks a contract: ")[2])
    same = [f"step {other}" for other in sorted(failed) if other < number and failed[other] == wrong]
    if wrong:
        failed[number] = wrong
    return replace(
        report, step=f"step {number} of {len(STEPS[lesson])}", before=same[0] if same else report.before
    )
