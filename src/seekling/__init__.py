"""seekling teaches a small language model to search instead of remember."""

__version__ = "0.1.0"
