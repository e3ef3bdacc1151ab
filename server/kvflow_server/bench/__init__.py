"""Experiments on real servers."""
