"""Lesson 15: the complete engine."""
