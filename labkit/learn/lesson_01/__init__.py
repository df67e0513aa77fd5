"""Lesson 01: block-table cache."""
