"""Transplants into a small encoder; a package because its fixtures are its own."""
