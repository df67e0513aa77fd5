"""Lesson 13: rows of unequal length: packed prompts, in chunks, and attention in equal shares."""
