"""Lesson 02: batched append."""
