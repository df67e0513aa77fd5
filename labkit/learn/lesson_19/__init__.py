"""Lesson 19: the server."""
