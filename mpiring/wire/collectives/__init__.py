"""The collectives of one rank: from the user's arrays to the result, as programs."""
