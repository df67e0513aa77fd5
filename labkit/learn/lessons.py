"""The lessons whose part the reader writes, and the gate of each."""

from labkit.learn.gates import Gate
from labkit.learn.lesson_00.gate import GATE as GATE_00
from labkit.learn.lesson_01.gate import GATE as GATE_01
from labkit.learn.lesson_02.gate import GATE as GATE_02
from labkit.learn.lesson_03.gate import GATE as GATE_03
from labkit.learn.lesson_04.gate import GATE as GATE_04
from labkit.learn.lesson_05.gate import GATE as GATE_05
from labkit.learn.lesson_06.gate import GATE as GATE_06
from labkit.learn.lesson_07.gate import GATE as GATE_07
from labkit.learn.lesson_08.gate import GATE as GATE_08
from labkit.learn.lesson_09.gate import GATE as GATE_09
from labkit.learn.lesson_10.gate import GATE as GATE_10
from labkit.learn.lesson_11.gate import GATE as GATE_11
from labkit.learn.lesson_12.gate import GATE as GATE_12
from labkit.learn.lesson_13.gate import GATE as GATE_13
from labkit.learn.lesson_14.gate import GATE as GATE_14

GATES: dict[str, Gate] = {  # by the lesson's number
    "00": GATE_00,
    "01": GATE_01,
    "02": GATE_02,
    "03": GATE_03,
    "04": GATE_04,
    "05": GATE_05,
    "06": GATE_06,
    "07": GATE_07,
    "08": GATE_08,
    "09": GATE_09,
    "10": GATE_10,
    "11": GATE_11,
    "12": GATE_12,
    "13": GATE_13,
    "14": GATE_14,
}
