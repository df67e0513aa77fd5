"""Lesson 17: speculation by n-grams."""
