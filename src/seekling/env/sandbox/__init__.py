"""Runs programs that a model wrote, under limits; the security boundary of the environment."""
