"""The `mpiring` command."""
