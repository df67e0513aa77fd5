"""Lesson 13: rows of unequal length: prompts behind each other, in chunks, and attention in equal shares."""
