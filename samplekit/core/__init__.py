"""Contracts shared by every part: protocols, statistics' names, errors, pytrees."""
