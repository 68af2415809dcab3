"""Mechanisms of the zoo in models of other libraries."""
