"""Integrations: mechanisms of the zoo in models of other libraries."""
