"""Predictions, exercises and their graders."""

from labkit.learn.exercise import BrokenContract, Case, Exercise, not_attempted
from labkit.learn.prediction import Prediction

__all__ = ["BrokenContract", "Case", "Exercise", "Prediction", "not_attempted"]
