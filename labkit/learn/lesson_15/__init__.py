"""Lesson 15: a modern model."""
