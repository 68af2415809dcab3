"""Tests of analyses; a package, because they share fixtures of their own."""
