"""Lesson 10: tokens that are read one step behind, and what it takes."""
