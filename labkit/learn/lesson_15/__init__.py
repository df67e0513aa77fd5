"""Lesson 11: the complete engine."""
