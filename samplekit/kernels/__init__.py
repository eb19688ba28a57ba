"""Kernels: Markov transitions, one file a family; each is a frozen pytree."""
