"""Ring all-reduce over MPI: schedules as data, proven, priced, drawn and run."""
