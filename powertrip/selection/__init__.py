"""Decisions: which sites take part, and what work they do. Pure functions on arrays."""

from powertrip.selection.errors import MissingGains, NoUsableSite, RecordError, SelectionError
from powertrip.selection.policy import POLICIES, Policy, build_policy
from powertrip.selection.settings import SelectionSettings
from powertrip.selection.types import Candidate, Decision, Observation, Work

__all__ = [
    "POLICIES",
    "Candidate",
    "Decision",
    "MissingGains",
    "NoUsableSite",
    "Observation",
    "Policy",
    "RecordError",
    "SelectionError",
    "SelectionSettings",
    "Work",
    "build_policy",
]
