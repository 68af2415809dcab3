"""Advice from records: which mechanism to use for which use case, and the evidence."""
