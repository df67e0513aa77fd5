"""Lesson 20: the complete engine."""
