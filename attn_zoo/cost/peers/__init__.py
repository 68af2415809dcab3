"""Comparisons of layers of the zoo with layers of public packages."""
