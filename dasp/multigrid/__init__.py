"""Multigrid: the cycle over a hierarchy that another library made."""
