"""Lesson 06: what the device is told, what it knows already, and what breaks without that order."""
