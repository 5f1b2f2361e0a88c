"""Grids of simulated runs: policies, settings and seeds against each other."""
