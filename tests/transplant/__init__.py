"""Tests of transplants into a small encoder; a package, because they share fixtures of their own."""
