"""Checkpoints of a program by replay: what it reads is recorded, its state saved, and a later run continues there."""
