"""A very small autograd engine whose tensors have a shape, a dtype and a storage, but no data."""
