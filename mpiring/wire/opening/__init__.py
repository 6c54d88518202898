"""Do all ranks mean the same call?  The opening and the closing exchange, and the member that all else stands on."""
