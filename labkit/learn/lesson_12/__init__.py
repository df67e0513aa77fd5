"""Lesson 12: tokens that are drawn without a sort, and what it takes."""
