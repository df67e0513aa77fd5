"""The first cell of every notebook: `from labkit import lab; here = lab.start("00")`."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch

from labkit.bench import cost_card
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.parts import Part
from labkit.errors import OptionError
from labkit.kernels import triton_status
from labkit.ladder import LADDER, LESSONS, Lesson, Rung
from labkit.learn.gates import GATES, Report
from labkit.learn.kept import Kept, keep, kept
from labkit.learn.measured import BELOW, PACKAGE, YOURS, Measured, measure_host
from labkit.model import LanguageModel, load_model
from labkit.threads import use_one_thread
from labkit.watch import steady_prompts


@dataclass(frozen=True)
class Scale:
    """How large a lesson's measurements are on a kind of machine: the model and the batch sizes."""

    name: str
    model: str  # what is measured; the text of a lesson always comes from the trained model
    batch_sizes: tuple[int, ...]


CPU_SCALE = Scale("CPU", "data/tiny-gpt2", batch_sizes=(1, 4, 16))
GPU_SCALE = Scale("GPU", "random:gpt2", batch_sizes=(1, 8, 64))


@dataclass(frozen=True)
class Lab:
    """A lesson on this machine: its device and the scale of its measurements."""

    lesson: Lesson
    device: torch.device
    scale: Scale

    @property
    def rung(self) -> Rung:
        """The rung that this lesson is about; in the capstone, the last one."""
        return self.lesson.rung

    @property
    def below(self) -> Rung:
        """The rung that this lesson starts from. Raises OptionError in the first lesson."""
        return LADDER[f"{int(self.lesson.number) - 1:02}"]

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
        scheduler: SchedulerConfig = SchedulerConfig(),
        **parts: Part,
    ) -> InferenceEngine:
        """An engine of this lesson's rung with your parts: `here.build(block_tables=MyBlockTables)`.

        model: the trained one by default. Raises OptionError for a part that the rung has no use for.
        """
        return self._engine(parts, model, dtype=dtype, cache=cache, scheduler=scheduler)

    def _engine(
        self, parts: Mapping[str, Part], model: LanguageModel | None = None, **settings: Any
    ) -> InferenceEngine:
        model = model or self.trained_model()
        return InferenceEngine(model, self.rung.options, device=self.device, parts=parts, **settings)

    def check(self, **parts: Part) -> Report:
        """Whether the engine with your parts still is this rung's: the first contract that it breaks, if any.

        Raises OptionError in a lesson that has no gate, and for a part that its gate does not prove.
        """
        number, gate = self.lesson.number, GATES.get(self.lesson.number)
        if gate is None:
            raise OptionError(f"lesson {number} has no gate; those that have: {', '.join(GATES)}")
        if set(parts) != {gate.part}:
            raise OptionError(f"lesson {number} proves {gate.part}: here.check({gate.part}=...)")
        return gate.check(partial(self._engine, parts))

    def card(self, batch_size: int = 8, **parts: Part) -> pd.DataFrame:
        """What a steady step does, counted: the rung below, your engine, and the package's."""
        model, cache = self.trained_model(), CacheConfig(prefix_cache=False)
        engines = {
            BELOW: InferenceEngine(model, self.below.options, device=self.device, cache=cache),
            YOURS: self._engine(parts, model, cache=cache),
            PACKAGE: self._engine({}, model, cache=cache),
        }
        prompts = steady_prompts(batch_size, lengths=(20,))
        return pd.DataFrame({name: cost_card(e, prompts).column() for name, e in engines.items()})

    def measure(self, batch_size: int = 64, rounds: int = 5, **parts: Part) -> Measured:
        """Host time of a step, the model taken out: the rung below, your engine, the package's, in turn."""
        return measure_host(self.below, self.rung, parts, batch_size, self.device, rounds)

    def keep(self, **parts: Part) -> list[Kept]:
        """Write your parts' sources to notebooks/mine/, for later lessons. Nothing there runs by itself."""
        return [keep(self.lesson.number, option, part) for option, part in parts.items()]

    def kept(self) -> list[Kept]:
        """All parts that you have kept, of every lesson."""
        return kept()

    # --- models ------------------------------------------------------------------------------------------

    def measured_model(self) -> LanguageModel:
        """The model that this machine's measurements use."""
        return load_model(self.scale.model)


def start(number: str) -> Lab:
    """Begin lesson `number`: say where it runs and at what scale.

    Without a GPU PyTorch computes on one thread from here on, unless OMP_NUM_THREADS is set.
    Raises OptionError for a number that no lesson has.
    """
    lesson = LESSONS[number]
    on_gpu = torch.cuda.is_available()
    scale = GPU_SCALE if on_gpu else CPU_SCALE
    device = torch.device("cuda" if on_gpu else "cpu")
    status = triton_status()
    if on_gpu:
        name = torch.cuda.get_device_name()
    else:
        use_one_thread()
        threads = torch.get_num_threads()
        name = f"{platform.machine()} CPU, {threads} {'thread' if threads == 1 else 'threads'}"
    print(f"Lesson {lesson.number}: {lesson.title}")
    print(f"device   {name}")
    print(f"versions Python {platform.python_version()}, torch {torch.__version__}")
    print(f"Triton   {status.mode}: {status.reason}")
    batches = ", ".join(map(str, scale.batch_sizes))
    print(f"scale    {scale.name}: measurements use {scale.model}, batches of {batches}")
    return Lab(lesson, device, scale)
