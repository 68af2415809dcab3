"""Findings in sentences: abilities and cost of every mechanism, and a choice for each of five needs, computed from records."""
