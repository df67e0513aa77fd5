"""Lesson 09: fused layers, split attention."""
