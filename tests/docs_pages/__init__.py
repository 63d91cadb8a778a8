"""The generated pages of the documentation, and what makes each of them."""
