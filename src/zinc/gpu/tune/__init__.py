"""Search for the fastest tiles of a device: which products, how they are timed, and the search."""
