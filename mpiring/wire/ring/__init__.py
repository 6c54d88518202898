"""A ring's life: how it is made and ends, its calls in order, its deadlines, and its messages."""
