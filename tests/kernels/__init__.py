"""Proofs of the Triton kernels; a package so that its helpers can be imported."""
