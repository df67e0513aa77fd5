"""What a part that the reader writes must hold, and how that is proven: a gate per lesson."""

from labkit.learn.gates import (
    lesson_01,
    lesson_02,
    lesson_03,
    lesson_04,
    lesson_05,
    lesson_06,
    lesson_07,
    lesson_08,
    lesson_09,
    lesson_10,
)
from labkit.learn.gates.gate import Gate, Report

GATES: dict[str, Gate] = {  # by the lesson's number
    "01": lesson_01.GATE,
    "02": lesson_02.GATE,
    "03": lesson_03.GATE,
    "04": lesson_04.GATE,
    "05": lesson_05.GATE,
    "06": lesson_06.GATE,
    "07": lesson_07.GATE,
    "08": lesson_08.GATE,
    "09": lesson_09.GATE,
    "10": lesson_10.GATE,
}

__all__ = ["GATES", "Gate", "Report"]
