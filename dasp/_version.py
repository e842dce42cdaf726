"""The version of the package, which everything else asks for here."""

__version__ = "0.1.0"
