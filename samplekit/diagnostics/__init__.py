"""Verdicts on a run: numbers, findings with remedies, and what ArviZ lacks."""
