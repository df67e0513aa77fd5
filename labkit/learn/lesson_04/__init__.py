"""Lesson 04: identity-pos append."""
