"""What a part that the reader writes must hold, and how that is proven: a gate per lesson."""

from labkit.learn.gates import lesson_01, lesson_02, lesson_03, lesson_04, lesson_05
from labkit.learn.gates.gate import Gate, Report

GATES: dict[str, Gate] = {  # by the lesson's number
    "01": lesson_01.GATE,
    "02": lesson_02.GATE,
    "03": lesson_03.GATE,
    "04": lesson_04.GATE,
    "05": lesson_05.GATE,
}

__all__ = ["GATES", "Gate", "Report"]
