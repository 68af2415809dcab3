"""Advice from records: which mechanism to use for which use case, with the evidence."""
