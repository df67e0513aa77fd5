"""Each notebook under test has a reader who has done nothing yet, whatever ran before it in this process."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from nbval.plugin import IPyNbFile


def forgetting(setup: Callable[[IPyNbFile], None]) -> Callable[[IPyNbFile], None]:
    """`IPyNbFile.setup`, which starts the notebook's kernel, after all that was noted of a reader is gone."""

    def begin(notebook: IPyNbFile) -> None:
        mine = Path(os.environ["LABKIT_MINE"])
        shutil.rmtree(mine, ignore_errors=True)
        mine.mkdir()
        setup(notebook)

    return begin


def install() -> None:
    IPyNbFile.setup = forgetting(IPyNbFile.setup)
