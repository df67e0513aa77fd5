"""The first cell of every notebook: `from labkit import lab; here = lab.start("00")`."""

import platform
from dataclasses import dataclass

import torch

from labkit.kernels import triton_status
from labkit.ladder import LADDER, LESSONS, Lesson, Rung
from labkit.model import LanguageModel, load_model
from labkit.threads import use_one_thread


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
