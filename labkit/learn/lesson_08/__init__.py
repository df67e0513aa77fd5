"""Lesson 08: CUDA graphs."""
