"""Integrations that put mechanisms of attn-zoo into models of other libraries."""
