"""The first cell of every notebook: `from labkit import lab`, and `here = lab.start("00")` in a lesson,
`here = lab.begin("before_00")` on a page that comes before one."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import unwrap
from typing import Any

import pandas as pd
import torch

from labkit.bench import cost_card
from labkit.bench.cost_cards import counts_of_alike
from labkit.bench.host_time import LENGTHS
from labkit.checks import require_count, shown
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.config import EIGHT_AT_A_TIME
from labkit.engine.parts import Part
from labkit.errors import OptionError
from labkit.kernels import triton_status
from labkit.ladder import LADDER, LESSONS, PAGES, Lesson, Page, Rung, all_pages
from labkit.learn.gates import Report
from labkit.learn.home import Home
from labkit.learn.kept import Kept, keep_all, kept
from labkit.learn.lessons import GATES
from labkit.learn.measured import BELOW, PACKAGE, YOURS, Measured, measure_host
from labkit.learn.prediction import Prediction, factor_off
from labkit.learn.progress import LessonProgress
from labkit.learn.progress import progress as read_progress
from labkit.learn.steps import STEPS, noted, share_right
from labkit.model import LanguageModel, load_model
from labkit.paths import require_project
from labkit.show import show_thousands
from labkit.threads import use_one_thread
from labkit.watch import steady_prompts

__all__ = ["begin", "home", "progress", "start"]


@dataclass(frozen=True)
class Scale:
    """How large a lesson's measurements are on a kind of machine: the model and the batch sizes."""

    name: str
    model: str  # what is measured; the text of a lesson always comes from the trained model
    batch_sizes: tuple[int, ...]


MOST = 4096  # of requests in a batch, of a prompt's tokens, of rounds: a slip of the hand takes no hour

CPU_SCALE = Scale("CPU", "data/tiny-gpt2", batch_sizes=(1, 4, 16))
GPU_SCALE = Scale("GPU", "random:gpt2", batch_sizes=(1, 8, 64))


@dataclass(frozen=True)
class Desk:
    """A page on this machine: its device. Without a rung, there is nothing to build or to measure."""

    page: Page
    device: torch.device

    def __repr__(self) -> str:
        return f"Desk({self.page.number}: {self.page.title}, {self.device})"

    def predict(self, question: str, unit: str, guess: float | None = None) -> Prediction:
        """A question about a number; write your guess down before the next cell scores it."""
        return Prediction(question, unit, guess, self.page.number)


@dataclass(frozen=True)
class Lab(Desk):
    """A lesson on this machine: its device and the scale of its measurements."""

    page: Lesson
    scale: Scale

    def __repr__(self) -> str:
        return f"Lab(lesson {self.page.number}: {self.page.title}, rung {self.rung.number}, {self.device})"

    @property
    def rung(self) -> Rung:
        """The rung that this lesson is about; in the capstone, the last one."""
        return self.page.rung

    @property
    def below(self) -> Rung:
        """The rung that this lesson starts from. Raises OptionError in the first lesson."""
        if self.rung.number < self.page.number:  # the lesson adds none
            return self.rung
        return LADDER[max((number for number in LADDER if number < self.page.number), default="-1")]

    def trained_model(self) -> LanguageModel:
        """The shipped GPT-2, which has read Shakespeare."""
        return load_model("data/tiny-gpt2")

    # --- your own part of the rung ---------------------------------------------------------------------

    def build(
        self,
        *,
        model: LanguageModel | None = None,
        dtype: torch.dtype | None = None,
        cache: CacheConfig = CacheConfig(),
        scheduler: SchedulerConfig = EIGHT_AT_A_TIME,
        **parts: Part,
    ) -> InferenceEngine:
        """An engine of this lesson's rung with your parts: `here.build(block_tables=MyBlockTables)`.

        model: the trained one by default. scheduler: batches of eight by default. Raises OptionError for a
        part that the rung has no use for.
        """
        return self._engine(self.rung, parts, model, dtype=dtype, cache=cache, scheduler=scheduler)

    def _engine(
        self, rung: Rung, parts: Mapping[str, Part], model: LanguageModel | None = None, **settings: Any
    ) -> InferenceEngine:
        model = self.trained_model() if model is None else model
        settings = {"scheduler": EIGHT_AT_A_TIME} | settings
        return InferenceEngine(model, rung.options, device=self.device, parts=parts, **settings)

    def check(self, **parts: Part) -> Report:
        """Whether the engine with your parts still is this rung's: the first contract that it breaks, if any.

        A pass is noted in your progress as a build step, for each part in which no gap is left; it says how
        many are.
        Raises OptionError in a lesson that has no gate, and for a part that its gate does not prove.
        """
        report, number = self._proven(parts), self.page.number
        own = {option: unwrap(part) for option, part in parts.items()}
        told = [noted(report, number, option, part) for option, part in own.items()]
        return told[-1].with_gaps_of(*own.values())

    def refuse(self, **parts: Part) -> Report:
        """What the gate says of a part that is broken on purpose, and that it refuses. Raises OptionError as
        `check` does."""
        report = self._proven(parts)
        return report.on_purpose(*map(unwrap, parts.values()))

    def _proven(self, parts: Mapping[str, Part]) -> Report:
        number, gate = self.page.number, GATES.get(self.page.number)
        if gate is None:
            raise OptionError(f"lesson {number} has no gate; those that have: {', '.join(GATES)}")
        if not parts or not parts.keys() <= set(gate.parts):
            named = " or ".join(gate.parts)
            raise OptionError(f"lesson {number} proves {named}: here.check({gate.parts[0]}=...)")
        return gate.check(partial(self._engine, self.rung, parts), *parts)

    def card(self, batch_size: int = 8, lengths: Sequence[int] = (20,), **parts: Part) -> pd.DataFrame:
        """What a steady step does, counted: the rung below, your engine, and the package's.

        lengths: of the prompts, in turn; a single one makes all positions equal. Without a GPU its rows are
        recorded ones, as the table's head says. Yours are those of the engine that asks PyTorch for as much.
        Raises OptionError for an argument that is something else.
        """
        check_batch(batch_size, lengths)
        model, cache = self.trained_model(), CacheConfig(prefix_cache=False)
        engines = {
            BELOW: self._engine(self.below, {}, model, cache=cache),
            YOURS: self._engine(self.rung, parts, model, cache=cache),
            PACKAGE: self._engine(self.rung, {}, model, cache=cache),
        }
        prompts = steady_prompts(batch_size, lengths)
        cards = {name: cost_card(engine, prompts) for name, engine in engines.items()}
        if self.device.type != "cuda":
            device = counts_of_alike(cards[YOURS], (cards[BELOW], cards[PACKAGE]))
            cards[YOURS] = replace(cards[YOURS], device=device)
        columns = {name: card.column() for name, card in cards.items()}
        rows = list(columns[PACKAGE])
        # Not by pandas' `fillna`: a column that lacks a row would be one of fractions.
        table = pd.DataFrame(
            {n: [each.get(row, "not recorded") for row in rows] for n, each in columns.items()}, rows
        )
        counts = cards[PACKAGE].device
        source = counts.source if counts else "none recorded"
        return table.rename_axis(index=f"GPU: {source.replace(', counted', '')}")

    def measure(
        self, batch_size: int = 64, rounds: int = 5, lengths: Sequence[int] = LENGTHS, **parts: Part
    ) -> Measured:
        """Host time of a step, the model taken out: the rung below, your engine, the package's, in turn.

        lengths: of the prompts, in turn; a single one makes all positions equal. Raises OptionError for an
        argument that is something else, or beyond what a block of the timed engine holds.
        """
        check_batch(batch_size, lengths)
        require_count("rounds", rounds, MOST)
        return measure_host(self.below, self.rung, parts, batch_size, self.device, rounds, lengths)

    def keep(self, **parts: Part) -> list[Kept]:
        """Write your parts' sources to notebooks/mine/, for later lessons, and print what the gate says of
        them: what it refuses is kept as well. Nothing there runs by itself.

        Raises OptionError, with nothing written, if one of them cannot be kept or there is none.
        """
        number = self.page.number
        if not parts:
            raise OptionError("keep needs the parts, each by its name, as the lesson's last cell has them")
        written = keep_all(number, parts)
        if number in GATES and parts.keys() <= set(GATES[number].parts):
            print(self.check(**parts))
        return written

    def kept(self) -> list[Kept]:
        """All parts that you have kept, of every lesson."""
        return kept()

    # --- models ------------------------------------------------------------------------------------------

    def measured_model(self) -> LanguageModel:
        """The model that this machine's measurements use."""
        return load_model(self.scale.model)


def check_batch(batch_size: object, lengths: object) -> None:
    """Raises OptionError unless a batch can have this size, and prompts these lengths."""
    require_count("batch_size", batch_size, MOST)
    if not isinstance(lengths, Sequence) or isinstance(lengths, str | bytes) or not lengths:
        raise OptionError(f"lengths must be a list of prompts' lengths, not {shown(lengths)}")
    for length in lengths:
        require_count("each of lengths", length, MOST)


def start(number: str) -> Lab:
    """Begin lesson `number`: say where it runs and at what scale.

    Without a GPU PyTorch computes on one thread from here on, unless OMP_NUM_THREADS is set.
    Raises OptionError for a number that no lesson has, ProjectError for a package without its project.
    """
    lesson = LESSONS[number]
    device = _say_where(f"Lesson {lesson.number}: {lesson.title}")
    scale = GPU_SCALE if device.type == "cuda" else CPU_SCALE
    batches = ", ".join(map(str, scale.batch_sizes))
    print(f"scale    {scale.name}: measurements use {scale.model}, and batches of {batches} requests")
    return Lab(lesson, device, scale)


def begin(number: str) -> Desk:
    """Begin the page `number`, such as "before_00", as `start` begins a lesson, and with its errors."""
    page = PAGES[number]
    return Desk(page, _say_where(f"Before lesson {number.removeprefix('before_')}: {page.title}"))


def _say_where(title: str) -> torch.device:
    """Print a notebook's title and where it runs, and have its tables shown with separators; the device that
    it uses."""
    require_project()
    show_thousands()
    on_gpu = torch.cuda.is_available()
    status = triton_status()
    if on_gpu:
        name = torch.cuda.get_device_name()
    else:
        use_one_thread()
        threads = torch.get_num_threads()
        name = f"{platform.machine()} CPU, {threads} {'thread' if threads == 1 else 'threads'}"
    print(title)
    print(f"device   {name}")
    print(f"versions Python {platform.python_version()}, torch {torch.__version__}")
    print(f"Triton   {status.mode}: {status.reason}")
    return torch.device("cuda" if on_gpu else "cpu")


def home() -> Home:
    """All notebooks in order, how long each takes, what you have done in it, and where to continue.

    Raises OptionError if the file of your progress is broken.
    """
    return Home(read_progress())


def progress() -> pd.DataFrame:
    """What you have done in all lessons: the build steps that are right, and by which factors your
    predictions were off.

    It is stored in notebooks/mine/, so it survives a restart. Raises OptionError if that file is broken.
    """
    done = read_progress()
    rows = {}
    for page in all_pages():
        of_page = done.get(page.number, LessonProgress())
        rows[f"{page.number.replace('_', ' ')} {page.title}"] = {
            "steps": f"{share_right(page.number, of_page.gates):.0%}" if page.number in STEPS else "",
            "predictions off by": ", ".join(
                f"×{factor_off(each.guess, each.actual):.3g}" for each in of_page.guesses.values()
            ),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
