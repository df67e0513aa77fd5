"""Lesson 14: blocks of texts that begin alike, computed once."""
