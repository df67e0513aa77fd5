"""Copies that run late, and what they bring."""

from labkit.learn.lesson_06.copies import LateDevice, messages_spoilt


def test_a_late_device_reads_a_buffer_when_it_must():
    device = LateDevice(late_by=1)
    buffer = [1, 2]
    first = device.copy(buffer, 2)
    assert device.arrived == []
    device.copy([3], 1)
    assert device.arrived == [[1, 2]]  # one may be under way
    buffer[:] = [9, 9]
    first.wait()
    assert device.waited == [] and device.arrived == [[1, 2]]  # it was over
    device.finish()
    assert device.arrived == [[1, 2], [3]]


def test_waiting_for_a_copy_is_waiting_for_all_before_it():
    device = LateDevice()
    copies = [device.copy([i], 1) for i in range(3)]
    copies[1].wait()
    assert device.arrived == [[0], [1]] and device.waited == [1]


def test_only_the_wait_for_its_own_copy_makes_a_buffer_safe_however_late_copies_are():
    spoilt = messages_spoilt(12, (0, 1, 2, 5, None))
    one, two, safe = spoilt.values.tolist()
    assert safe == [0] * 5 and one == [0] + [11] * 4 and two[:2] == [0, 0] and min(two[2:]) > 0
