"""HOW a schedule happens: arrays, arithmetic, transports, and the executor."""
