"""Lesson 16: keys and values in 8 bits."""
