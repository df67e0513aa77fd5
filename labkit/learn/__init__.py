"""Predictions, exercises and their graders."""

from labkit.learn.exercise import Exercise, not_attempted
from labkit.learn.prediction import Prediction

__all__ = ["Exercise", "Prediction", "not_attempted"]
