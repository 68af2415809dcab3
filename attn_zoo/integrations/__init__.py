"""Integrations: mechanisms of attn-zoo in models of other libraries."""
