"""_version.py - the version, which is that of `include/kakeya.h`; a test compares the two."""

__version__ = "0.1.0"
