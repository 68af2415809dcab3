"""Tests of measurements; a package, because they share fixtures of their own."""
