"""Faults done to a real run on purpose, and what must hold all the same."""
