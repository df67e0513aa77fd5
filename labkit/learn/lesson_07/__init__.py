"""Lesson 07: one table for all layers."""
