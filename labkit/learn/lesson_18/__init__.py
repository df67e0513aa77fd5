"""Lesson 18: one model on several GPUs, and several engines behind a router."""
