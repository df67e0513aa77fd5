"""Predictions, exercises and their graders."""

from labkit.learn.exercise import BrokenContract, Exercise, not_attempted
from labkit.learn.prediction import Prediction

__all__ = ["BrokenContract", "Exercise", "Prediction", "not_attempted"]
