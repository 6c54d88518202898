"""Moving bytes between ranks: one small protocol; over MPI, in one process, from and to a device's memory."""
