"""Each lesson's build steps: filled with their hints they are right and do what the text says, and the parts
that they make can be kept and make one engine."""

import re
from unittest.mock import patch

import nbformat
import pytest
import torch
from skeletons import WITH_STEPS, definitions, filled, judged, shell_for, steps_of

from labkit import LADDER, InferenceEngine, SamplingParams, SchedulerConfig, lab, paths
from labkit.ladder import LESSONS, all_pages
from labkit.learn.assembly import Assembly
from labkit.learn.gates import Gate, Report
from labkit.learn.kept import kept
from labkit.learn.lesson_15.gate import check_step
from labkit.learn.lesson_20.int8 import check_model
from labkit.learn.lessons import GATES
from labkit.learn.measured import YOURS
from labkit.learn.progress import LessonProgress
from labkit.learn.steps import STEPS, noted
from labkit.paths import ROOT

pytestmark = pytest.mark.slow

KEEPS = re.compile(r"^# (here\.keep\(.*\))$", re.MULTILINE)  # in a notebook, for the reader to uncomment
RIGHT = Report(True, "right")
PROMPTS = ["ROMEO:\nGood night", "To be, or not", "The king is dead. Long"]
LAUNCHED = r"kernels launched for the toy's write: "
SEARCHED = "sorts in a step: 0 with top-k and top-p, 0 without"
FLOWN = "four requests: 20 steps, launched ahead: 19; tokens for nobody: 3"

# What the steps' last lines say when they are filled, by the lesson's number.
DONE = {
    "01": [f"rows made: 96 of 6144; index tensors in a step: {count}" for count in (9, 9, 3)],
    "02": [
        "8 requests with room: 6 writes, 69 calls; all at a boundary: 48 writes, 63 calls",
        "8 requests with room: 6 writes, 69 calls; all at a boundary: 6 writes, 117 calls",
        "8 requests with room: 6 writes, 21 calls; all at a boundary: 6 writes, 69 calls",
    ],
    "03": [
        r".*",
        r".*",
        rf"{LAUNCHED}2 \(6 programs, grid \(3, 2\) and 6 programs, grid \(3, 2\)\)",
        rf"{LAUNCHED}1 \(6 programs, grid \(3, 2\)\)",
    ],
    "04": [
        "index tensors in a step: 15",
        rf"{LAUNCHED}1 \(6 programs, grid \(3, 2\)\)",
        "index tensors in a step: 4",
    ],
    "05": [
        f"an append of 64 tokens: 0 records, {calls} calls, {reads} reads of the table, 0 writes to it"
        for calls, reads in ((72, 192), (135, 128), (7, 64))
    ],
    "06": [  # in steps of 128: of 8 requests, all numbers; rows at 4 boundaries; nothing else
        "sent in 128 of 128 steps: 128 copies, 1,388,544 bytes",
        "sent in 128 of 128 steps: 128 copies, 227,328 bytes",
        "sent in 4 of 128 steps: 4 copies, 18,432 bytes",
    ],
    "07": [".*called once in a step of 8 requests, 8 lists looked at"],
    "09": [".*", ".*", ".*", "norm_linear: yours, merge: yours"],
    "10": [FLOWN] * 3,
    "12": [SEARCHED] * 3,
    "13": [".*", ".*", " +proven by +100 random batches.*"],
    "14": ["computed: 491 of 1,499 prompt tokens"] * 4,
}
# What a step's skeleton is refused with when those before it are filled.
UNFILLED = {
    "10": [
        "the next step is launched before this one is read",
        "a token goes to the session that",
        "a limit counts the token in flight",
    ],
    "11": [
        "has loaded rows [] of the weight when it waits, expected [0, 1]",
        "of 4 rows, with `least_rows` 4, `cut` makes 1 part, expected 2.",
        "of their own found attention in the main stream uses attention's workspace of lane 0",
        "none is in the side stream",
    ],
    "12": ["nothing is sorted found the sampler asked for `sort`"] * 3,
    "13": ["each prompt gets its rows, first come, first served"] * 2 + ["nobody waits for a large share"],
    "15": [
        "This is the product of x as it is: nothing is normalized yet.",
        "This is `up`: nothing goes through the gate yet.",
        "It is stored as it came: nothing is rotated",
        "no program writes query head 1. try A request has one program per head of keys, so each program ",
        "rms_linear_kernel, gated_linear_kernel, group_kernel not among them",
    ],
    "16": [
        "a value is off by half a step of its own head at most",
        "The whole numbers were taken as they are: no scale is used yet.",
        "no error is larger than the bound",
    ],
    "17": [
        "There is no draft at all.",
        "the token after the last kept draft is kept, too",
        "the step's first row and all kept drafts stay in the cache",
        "the account holds what drafts brought and cost",
    ],
    "18": [
        "of 2 heads, the ranks have 2 and 2",
        "a layer has two of them, and 0 sums were made",
        "load comes first",
    ],
    "14": [
        "a key stands for all of a text up to the block's end",
        "the longest run of cached blocks is found",
        "the longest run of cached blocks is found",
        "one block goes at a time",
    ],
    "19": [
        "only text that may begin a stop string is held",
        "an answer ends before its first stop string",
        "the text is all there",
        "all of a client's answers end when it leaves",
        "a request for which there is no room now gets 429",
    ],
}


def notebook_of(number):
    return ROOT / "notebooks" / LESSONS[number].notebook


def test_every_page_has_skeletons():
    assert [path.name for path in WITH_STEPS] == sorted(page.notebook for page in all_pages())


@pytest.mark.parametrize("notebook", WITH_STEPS, ids=lambda path: path.stem)
def test_the_hints_fill_the_gaps_and_every_verdict_is_right(notebook):
    number, made = notebook.stem.split("_")[0], filled(notebook)
    assert len(made.printed) == len(steps_of(notebook)) >= 2
    assert all(re.match(r"✓  .* right\n|\w+: right\b", text) for text in made.printed), made.printed
    for line, expected in zip(made.last_lines, DONE.get(number, ()), strict=False):
        assert re.fullmatch(expected, line)
    assert number not in STEPS or made.noted == {number: LessonProgress(STEPS[number][: len(made.printed)])}


@pytest.mark.parametrize("number", UNFILLED)
def test_a_skeleton_behind_filled_steps_is_refused_by_what_it_leaves_undone(number, capsys):
    shell = shell_for(notebook_of(number))
    steps = zip(steps_of(notebook_of(number)), STEPS[number], UNFILLED[number], strict=True)
    for step, name, words in steps:
        capsys.readouterr()
        shell.run_cell(judged(step.skeleton)).raise_error()
        said = " ".join(capsys.readouterr().out.split())
        assert "must hold" in said and words in said, said
        shell.run_cell(definitions(step.solved)).raise_error()
        noted(RIGHT, number, name, definitions)  # what its gate would say, after a while


# --- what is kept ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The folder in which a reader has kept the parts of all lessons, filled with their hints."""
    folder = tmp_path_factory.mktemp("mine")
    with patch.object(paths, "MINE", folder), patch.object(Gate, "check", lambda *_, **__: RIGHT):
        for number in (*GATES, "15", "19", "20"):
            cells = nbformat.read(notebook_of(number), as_version=4).cells
            (keeps,) = KEEPS.findall("\n".join(cell.source for cell in cells))
            exec(keeps, filled(notebook_of(number)).names)
    return folder


@pytest.fixture
def assembly(mine, monkeypatch):
    monkeypatch.setattr(paths, "MINE", mine)
    return Assembly([part for part in kept() if part.lesson in GATES])


def test_kept_parts_run_without_their_notebook(assembly):
    assert len(assembly.kept) == 16
    for part in kept():
        assert getattr(part.load(), "fn", part.load()).__module__.startswith("mine_lesson_")
        if check := {"15": check_step, "20": check_model}.get(part.lesson):
            assert check(part.load()).ok


@pytest.mark.parametrize("number", ["02", "05", "06"])
def test_a_kept_part_costs_what_the_packages_costs(assembly, number):
    (option,) = GATES[number].parts
    card = lab.start(number).card(**{option: assembly.parts_on(number)[option]})
    assert card["yours"].equals(card["the package's"])


RUNGS = [  # interpreted kernels of the reader's take minutes
    number if number in ("05", "14") else pytest.param(number, marks=pytest.mark.nightly) for number in LADDER
]


@pytest.mark.parametrize("number", RUNGS)
def test_an_engine_of_all_kept_parts_makes_the_packages_tokens(assembly, number, tiny):
    """In batches of one, two and three: from rung 11 on few rows go another way."""
    params = SamplingParams(12, stop_on_eos=False)
    settings = {"device": "cpu", "dtype": torch.float32}
    engine = assembly.engine(number, tiny, **settings)
    assert assembly.parts_on(number) == assembly.parts_on(number)  # a file is run once
    if number >= "05":
        assert type(engine.kv_manager).__module__.startswith("mine_lesson_")
    expected = [done.token_ids for done in InferenceEngine(tiny, **settings).generate(PROMPTS, params)]
    for count in (1, 2, 3):
        done = engine.generate(PROMPTS[:count], params)
        assert [each.token_ids for each in done] == expected[:count], count
        engine.check_integrity()


@pytest.mark.nightly
def test_the_hints_of_all_lessons_pass_together_and_no_part_is_left_out(assembly):
    told: list[str] = []
    passed, reports = assembly.proven("cpu", told.append)
    assert [report.text for report in reports.values() if not report.ok] == []
    assert len(passed.kept) == 16 and len(told) == 17
    assert told[0].startswith("16 kept parts to prove; without a GPU it takes about ")
    assert re.match(r"lesson_00_attention\.py: ✓  attention +right\n", told[1])


@pytest.mark.cuda
def test_on_a_gpu_the_reader_s_part_replays_cuda_graphs_and_gains():
    here, part = lab.start("08"), filled(notebook_of("08")).names["MyGraphedStep"]
    assert here.check(launch=part).text.startswith("launch: right.")
    engine = here.build(launch=part, scheduler=SchedulerConfig(max_batch_size=6))
    graphs = engine.decode_step.device_step.graphs
    assert graphs.keys() == {(size, greedy) for size in (1, 2, 4, 6) for greedy in (True, False)}
    assert all(isinstance(graph, torch.cuda.CUDAGraph) for graph, _ in graphs.values())
    params = [SamplingParams(20, stop_on_eos=False), SamplingParams(30, temperature=0.8, seed=1)]
    package = here.build(scheduler=SchedulerConfig(max_batch_size=6))
    ours, theirs = ([d.token_ids for d in e.generate(PROMPTS[:2], params)] for e in (engine, package))
    assert ours == theirs
    assert here.measure(launch=part).compared(YOURS).verdict == "faster"
