"""Runs a schedule over a transport: step by step, in chunks, and over several hosts."""
