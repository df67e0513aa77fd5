"""Lesson 00: an honest paged engine."""
