"""Lesson 05: records of blocks that count in place."""
