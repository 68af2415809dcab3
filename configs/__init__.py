"""Hydra's configuration files; the module must exist for ``pkg://attn_zoo.configs`` to be found."""
