"""May device pointers be handed to this MPI?  The evidence, the decision, and what a probe has found before."""
