"""Tests of the journal: what is written, and what is read back."""
