"""Judging what has happened: promises about runs and schedules, held against the events that a cluster tells of itself.

A model of its own: it knows the events, the promises and the rules of time, and nothing of how the server keeps them.
"""
