"""Lesson 03: Triton full-batch append."""
