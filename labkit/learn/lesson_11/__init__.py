"""Lesson 11: two halves of a batch beside each other, and weights that are asked for before the wait."""
