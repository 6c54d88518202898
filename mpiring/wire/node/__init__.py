"""Memory that the ranks of one host share, and collectives that move no data by message."""
