"""Carousel Memory: a hierarchical episodic memory for continual learning."""

__version__ = "0.1.0"
