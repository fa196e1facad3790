"""Search for the cheapest set of remedies that fits."""
