"""Recommendation of a mechanism for a use case or for given requirements, from declared capabilities, counted costs and records."""
