"""What an operation means, and the kernels that compute it."""
