"""How a part that the reader writes is proven; each lesson's own gate is in the lesson's folder."""

from labkit.learn.gates.gate import Gate, Report

__all__ = ["Gate", "Report"]
