"""A prepared set of real training steps for one large GPU, and the tables made from what it measures."""
